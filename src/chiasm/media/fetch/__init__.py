"""Where encoded bytes may come from: URL and address rules, the download client, files below one folder."""

"""The console: one page that shows what the server does. Plain files, no build step, nothing from elsewhere."""

"""TLS before a server that has none: a certificate of its own, and a thread that passes bytes on."""

import shutil
import socket
import ssl
import subprocess
import threading
from contextlib import contextmanager, suppress

import pytest


def certificate(folder):
    """A new certificate of 127.0.0.1, and its key."""
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("there is no openssl to make a certificate with")
    paths = folder / "cert.pem", folder / "key.pem"
    words = ["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2"]
    words += ["-subj", "/CN=store", "-addext", "subjectAltName=IP:127.0.0.1"]
    subprocess.run([openssl, *words, "-out", paths[0], "-keyout", paths[1]], check=True, capture_output=True)
    return paths


@contextmanager
def tls_front(folder, port):
    """Where the server behind a port is reached with TLS: a port, and the certificate to trust."""
    cert, key = certificate(folder)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(cert, key)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=_accept, args=(listener, context, port), daemon=True).start()
        yield listener.getsockname()[1], cert
        with suppress(OSError):
            listener.shutdown(socket.SHUT_RDWR)  # wakes the thread


def _accept(listener, context, port):
    with suppress(OSError):
        while True:
            threading.Thread(target=_serve, args=(listener.accept()[0], context, port), daemon=True).start()


def _serve(plain, context, port):
    with (
        suppress(OSError),
        context.wrap_socket(plain, server_side=True) as inside,
        socket.create_connection(("127.0.0.1", port)) as behind,
    ):
        back = threading.Thread(target=_pass_on, args=(behind, inside), daemon=True)
        back.start()
        _pass_on(inside, behind)
        with suppress(OSError):
            behind.shutdown(socket.SHUT_RDWR)
        back.join()


def _pass_on(source, target):
    with suppress(OSError):
        while data := source.recv(65536):
            target.sendall(data)

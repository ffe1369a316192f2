"""Runs LocalStack for S3 with all it writes below $LOCALSTACK_HOME, so that instances share nothing and removing it leaves nothing.

LocalStack keeps objects in one folder of /tmp whatever it is told; that folder is set here before the service begins.
"""

import os
import pathlib
import tempfile

home = pathlib.Path(os.environ["LOCALSTACK_HOME"]).resolve()
temporary = home / "tmp"
temporary.mkdir(parents=True, exist_ok=True)
os.environ.update(
    FILESYSTEM_ROOT=str(home / "fs"),
    LOCALSTACK_VOLUME_DIR=str(home / "var"),
    SERVICES="s3",
    EAGER_SERVICE_LOADING="1",
    GATEWAY_SERVER="twisted",
    DISABLE_EVENTS="1",
    SKIP_SSL_CERT_DOWNLOAD="1",
    PERSISTENCE="0",
    DNS_ADDRESS="0",
    S3_SKIP_SIGNATURE_VALIDATION="1",
)
os.environ.setdefault("LS_LOG", "warn")
tempfile.tempdir = str(temporary)

from localstack.runtime.main import main  # noqa: E402  (it reads the environment when it is imported)
from localstack.services.s3 import provider  # noqa: E402

provider.DEFAULT_S3_TMP_DIR = str(home / "objects")

main()

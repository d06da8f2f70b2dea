"""sshd in a whole Debian whose /etc/ld.so.preload names the library: sessions are as without it, and capped."""

import re
import shutil
import socket

import pytest
from tests.everywhere import builds
from tests.everywhere.container import Ended
from tests.everywhere.roots import Root, debian_root, put_driver, put_library

from isolator_testing import debian
from isolator_testing.tools import require_root, skip_or_fail

# The daemon, and a client of it, in namespaces that end with the script. `$1` is the port, `$2` what the client does.
SESSION = """
mount -t devpts -o ptmxmode=0666 none /dev/pts
mkdir -p /run/sshd
rm -f /tmp/sshd.log
/usr/sbin/sshd -E /tmp/sshd.log -p "$1" -o ListenAddress=127.0.0.1 -o PermitRootLogin=prohibit-password
client="-q -p $1 -o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null -o ConnectTimeout=60"
case $2 in
sftp) sftp -b /dev/stdin ${client/-p/-P} root@127.0.0.1 ;;
terminal) ssh -tt $client root@127.0.0.1 ;;
*) ssh $client root@127.0.0.1 ;;
esac <<'END'
%s
END
status=$?
kill "$(cat /run/sshd.pid)"
grep -o 'Accepted publickey for root' /tmp/sshd.log >&2
exit $status
"""
KEY = """ssh-keygen -q -t ed25519 -N '' -f /root/.ssh/id_ed25519
touch /root/.hushlogin; cd /root/.ssh; cp id_ed25519.pub authorized_keys"""
LOGIN = """shopt login_shell; umask; trap; ulimit -a; set -o; env | sed 's/^SSH_C.*/SSH/' | sort; id
ls -l /proc/self/fd
perl -e 'print "$^V $?\\n"; kill "TERM", $$'; ls /nonexistent; exit 7"""
WAYS = {
    "login shell": ("login", LOGIN, 7),
    "terminal": ("terminal", "tty; stty -a; exit 6", 6),
    "sftp": ("sftp", "ls /etc/ssh\nget /etc/hostname /tmp/got\nls /nonexistent", 1),
}


@pytest.fixture(scope="module", params=["bookworm", "trixie"])
def system(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Root:
    """A Debian with sshd, a key with which root may log in, the library and a card."""
    require_root()
    try:
        folder = tmp_path_factory.mktemp("sshd") / request.param
        root = debian_root(folder, request.param, "openssh-server", "openssh-client")
    except debian.Unavailable as reason:
        skip_or_fail(str(reason))
    put_library(root.folder, root.machine)
    put_driver(root.folder / "usr/lib/x86_64-linux-gnu", builds.fakegpu(root.machine))
    (root.folder / "opt").mkdir(exist_ok=True)
    shutil.copy(builds.program("allocate", root.machine, "-ldl", build="allocate"), root.folder / "opt/allocate")
    made = root.run("/bin/bash", "-ec", KEY)
    assert made.status == 0, made.errors
    return root


def _session(root: Root, kind: str, text: str) -> Ended:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    ended = root.run("/bin/bash", "-c", SESSION % text, "bash", str(port), kind)
    varying = re.compile(r"(?<=port )\d+|\d\d:\d\d|(?<=-> )\S+:\[\d+\]|/dev/pts/\d+|/proc/\d+/fd")
    return Ended(ended.status, varying.sub("_", ended.output), varying.sub("_", ended.errors))


@pytest.mark.roots
@pytest.mark.root
@pytest.mark.parametrize("way", WAYS)
def test_a_session_is_as_without_the_library(system: Root, way: str) -> None:
    kind, text, status = WAYS[way]
    preload = system.folder / "etc/ld.so.preload"
    with_ours = _session(system, kind, text)
    written = preload.read_text()
    preload.unlink()
    try:
        without = _session(system, kind, text)
    finally:
        preload.write_text(written)
    assert with_ours == without
    assert without.status == status, without
    assert "Accepted publickey for root" in without.errors


@pytest.mark.roots
@pytest.mark.root
def test_a_session_is_capped_though_it_has_another_environment(system: Root) -> None:
    ended = _session(system, "login", "env | grep -c -e LD_PRELOAD -e CUDA_; /opt/allocate dlopen")
    assert (ended.status, ended.output) == (0, "0\ncapped\n"), ended.errors

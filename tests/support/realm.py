"""A real Kerberos realm on this machine: MIT's KDC on a port of loopback, all of whose files are in one folder.

It needs Debian's krb5-kdc and krb5-admin-server. Nothing of the system's is changed: programs find the realm by
environment variables, JVMs by an option.
"""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

from tidegate.runtime.poll import wait_until
from tidegate.stack.component import port_open
from tidegate.stack.ports import free_ports

NAME = "TIDEGATE.TEST"
SKEW_SECONDS = 5
"""How far clocks may be apart, and so how long an expired ticket still works. Kerberos' default is five minutes."""
_KRB5 = """[libdefaults]
    default_realm = {name}
    dns_lookup_realm = false
    dns_lookup_kdc = false
    dns_canonicalize_hostname = false
    rdns = false
    udp_preference_limit = 1
    clockskew = {skew}
[realms]
    {name} = {{
        kdc = 127.0.0.1:{port}
    }}
"""
_KDC = """[kdcdefaults]
    kdc_listen = 127.0.0.1:{port}
    kdc_tcp_listen = 127.0.0.1:{port}
[realms]
    {name} = {{
        database_name = {folder}/principals
        key_stash_file = {folder}/stash
        max_life = 24h
    }}
[logging]
    kdc = FILE:{folder}/kdc.log
"""


class Realm:
    """The realm; its KDC runs until `close`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (self.port,) = free_ports(1)
        self.krb5_conf = folder / "krb5.conf"
        self.krb5_conf.write_text(_KRB5.format(name=NAME, skew=SKEW_SECONDS, port=self.port), "utf-8")
        (folder / "kdc.conf").write_text(_KDC.format(name=NAME, folder=folder, port=self.port), "utf-8")
        self._environment = {"KRB5_CONFIG": str(self.krb5_conf), "KRB5_KDC_PROFILE": str(folder / "kdc.conf")}
        self._run("kdb5_util", "create", "-s", "-r", NAME, "-P", "secret")
        self._kdc: subprocess.Popen[bytes] | None = None
        self.start()

    def start(self) -> None:
        """Start the KDC."""
        self._kdc = subprocess.Popen(
            ["/usr/sbin/krb5kdc", "-n", "-P", str(self.folder / "pid")],
            env=os.environ | self._environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        assert wait_until(lambda: port_open(self.port), 10), self.log()

    def log(self) -> str:
        """Return what the KDC tells of its answers."""
        return (self.folder / "kdc.log").read_text("utf-8")

    def keytab(self, *principals: str, seconds: int = 24 * 3600) -> Path:
        """Make principals whose tickets live so long; return a keytab with their keys."""
        keytab = self.folder / f"{principals[0].replace('/', '-')}.keytab"
        for principal in principals:
            self.admin(f'addprinc -randkey -maxlife "{seconds} seconds" {principal}')
            self.admin(f"ktadd -norandkey -k {keytab} {principal}")
        return keytab

    def admin(self, query: str) -> None:
        """Change the database."""
        self._run("kadmin.local", "-q", query)

    def environment(self, cache: Path, keytab: Path | None = None) -> dict[str, str]:
        """Return the environment of a program with a ticket cache and perhaps a keytab of its own."""
        found = {"KRB5_CONFIG": str(self.krb5_conf), "KRB5CCNAME": str(cache)}
        return found | ({} if keytab is None else {"KRB5_CLIENT_KTNAME": f"FILE:{keytab}"})

    @property
    def java_option(self) -> str:
        """What makes a JVM find the realm."""
        return f"-Djava.security.krb5.conf={self.krb5_conf}"

    def stop(self) -> None:
        """End the KDC."""
        if self._kdc is not None:
            os.killpg(self._kdc.pid, signal.SIGKILL)
            self._kdc.wait(10)
            self._kdc = None

    def _run(self, program: str, *args: str) -> None:
        command = [f"/usr/sbin/{program}", *args]
        ran = subprocess.run(
            command, env=os.environ | self._environment, capture_output=True, text=True, check=False, timeout=60
        )
        assert ran.returncode == 0, ran.stderr

"""Turns of PostgreSQL, made by pgbench: a private cluster on a Unix socket, with its default settings.

Contenders: `postgresql`, four INSERTs in one transaction; `postgresql-pipeline`, the same statements sent at once;
`postgresql-calls`, four transactions. PostgreSQL refuses to run as root; then the cluster belongs to another user.
"""

import contextlib
import glob
import json
import os
import pwd
import re
import shutil
import signal
import subprocess
import tempfile

import turn

CONTENDERS = ["postgresql", "postgresql-pipeline", "postgresql-calls"]

# An answer is sent after its transaction is on the disk. These are the defaults; they are set and read back.
DURABLE = {"fsync": "on", "synchronous_commit": "on", "full_page_writes": "on", "wal_sync_method": "fdatasync"}

TABLE = """
CREATE TABLE event (
    seq bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    session_id text NOT NULL,
    kind text NOT NULL,
    call_id text,
    body text NOT NULL,
    created_at timestamptz NOT NULL DEFAULT now()
);
CREATE INDEX event_session ON event (session_id);
CREATE UNIQUE INDEX event_call ON event (call_id, kind) WHERE call_id IS NOT NULL;
"""

INSERTS = [
    f"INSERT INTO event (session_id, kind, call_id, body) VALUES (:session, '{kind}', {call}, :{body});"
    for kind, call, body in [
        ("user", "NULL", "user_message"),
        ("tool_call", ":call", "arguments"),
        ("tool_result", ":call", "result"),
        ("assistant", "NULL", "assistant_message"),
    ]
]

# A client keeps its variables from turn to turn.
IDS = ["\\set turn :turn + 1", "\\set session :client_id", "\\set call :client_id * 1000000000 + :turn"]

SCRIPTS = {
    "postgresql": [*IDS, "BEGIN;", *INSERTS, "COMMIT;"],
    "postgresql-pipeline": [*IDS, "\\startpipeline", "BEGIN;", *INSERTS, "COMMIT;", "\\endpipeline"],
    "postgresql-calls": [*IDS, *INSERTS],
}

BODIES = {
    "user_message": turn.USER,
    "arguments": turn.ARGUMENTS,
    "result": turn.RESULT,
    "assistant_message": turn.ASSISTANT,
}


def programs():
    """The folder with initdb, postgres, pg_ctl, psql and pgbench."""
    wanted = ["initdb", "postgres", "pg_ctl", "psql", "pgbench"]
    folders = sorted(glob.glob("/usr/lib/postgresql/*/bin"), key=lambda it: int(it.split("/")[-2]))
    on_path = shutil.which("initdb")
    if on_path:
        folders.insert(0, os.path.dirname(os.path.realpath(on_path)))
    for folder in reversed(folders):
        if all(os.access(os.path.join(folder, name), os.X_OK) for name in wanted):
            return folder
    raise SystemExit("PostgreSQL is not installed: apt-get install postgresql")


def owner():
    """The user of the cluster: this one, unless it is root."""
    if os.geteuid() != 0:
        return None
    with contextlib.suppress(KeyError):
        return pwd.getpwnam("postgres")
    return pwd.getpwnam("nobody")


class Cluster:
    """A running cluster in a folder of its own."""

    def __init__(self, dir):
        self.bin, self.owner = programs(), owner()
        self.folder = tempfile.mkdtemp(prefix="abide-compare-postgresql-", dir=dir)
        if self.owner:
            os.chown(self.folder, self.owner.pw_uid, self.owner.pw_gid)
        self.data = os.path.join(self.folder, "data")

    def __enter__(self):
        try:
            self.call("initdb", "-D", self.data, "-U", "bench", "--auth=trust", "-E", "UTF8", "--no-locale")
            settings = {**DURABLE, "listen_addresses": "", "unix_socket_directories": self.folder}
            with open(os.path.join(self.data, "postgresql.conf"), "a") as conf:
                conf.writelines(f"{name} = '{value}'\n" for name, value in settings.items())
            log = os.path.join(self.folder, "log")
            self.call("pg_ctl", "start", "-w", "-D", self.data, "-l", log)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        # A second interrupt must not leave the server or its folder behind.
        before = signal.signal(signal.SIGINT, signal.SIG_IGN)
        if os.path.exists(os.path.join(self.data, "postmaster.pid")):
            self.call("pg_ctl", "stop", "-w", "-m", "fast", "-D", self.data)
        shutil.rmtree(self.folder)
        signal.signal(signal.SIGINT, before)

    def call(self, program, *arguments):
        """Runs a program of PostgreSQL. Returns its output."""
        named = {}
        if self.owner:
            named = {"user": self.owner.pw_uid, "group": self.owner.pw_gid, "extra_groups": []}
        # pg_ctl passes its output to the server, so a pipe would stay open.
        with tempfile.TemporaryFile("w+") as output:
            done = subprocess.run(
                [os.path.join(self.bin, program), *arguments],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                cwd=self.folder,
                env={"PATH": os.environ["PATH"], "LC_ALL": "C"},
                **named,
            )
            output.seek(0)
            text = output.read()
        if done.returncode != 0:
            raise SystemExit(f"{program} failed:\n{text}")
        return text

    def sql(self, database, *statements):
        """Runs statements with psql. Returns the lines of the rows, with columns separated by `|`."""
        commands = [word for statement in statements for word in ("-c", statement)]
        return self.call(
            "psql", "-XqAt", "-v", "ON_ERROR_STOP=1", "-h", self.folder, "-U", "bench", "-d", database, *commands
        ).splitlines()

    def run(self, contender, sessions, turns, probe):
        """Takes turns in a new database while a probe runs. Returns the record."""
        for name, value in DURABLE.items():
            assert self.sql("postgres", f"SHOW {name}") == [value], name
        self.sql("postgres", "DROP DATABASE IF EXISTS bench", "CREATE DATABASE bench")
        self.sql("bench", TABLE, "CHECKPOINT")
        script = os.path.join(self.folder, "turn.sql")
        with open(script, "w") as file:
            file.write("\n".join(SCRIPTS[contender]) + "\n")
        variables = {"turn": "0", **BODIES}
        defined = [word for name, value in variables.items() for word in ("-D", f"{name}={value}")]
        arguments = ["-n", "-M", "prepared", "-c", str(sessions), "-j", str(min(2, sessions)), "-t", str(turns)]
        server = ["-h", self.folder, "-U", "bench", "bench"]
        with probe:
            output = self.call("pgbench", *arguments, "-f", script, *defined, *server)
        rate = re.search(r"tps = ([0-9.]+) \(without initial connection time\)", output)
        assert rate, output
        self.verify(sessions * turns)
        (stored,) = self.sql("bench", "SELECT pg_total_relation_size('event')")
        (version,) = self.sql("bench", "SHOW server_version")
        return {
            "measurement": "turns",
            "contender": contender,
            "sessions": sessions,
            "turns": sessions * turns,
            "turns_per_second": float(rate[1]),
            "stored_per_payload_byte": int(stored) / (sessions * turns * turn.TURN_BYTES),
            "probe_during_us": probe.during_us,
            "durability": ", ".join(f"{name}={value}" for name, value in DURABLE.items()),
            "version": version.split()[0],
        }

    def verify(self, turns):
        """Checks that all turns are stored with their content, each with its own call."""
        counted = "SELECT count(*), count(DISTINCT call_id) FROM event WHERE kind = '{}' AND body = '{}'"
        for kind, body in zip(["user", "tool_call", "tool_result", "assistant"], BODIES.values()):
            calls = turns if kind.startswith("tool") else 0
            found = self.sql("bench", counted.format(kind, body))
            assert found == [f"{turns}|{calls}"], f"{kind}: {found}, {turns} turns expected"


def main():
    args = turn.options(__doc__, CONTENDERS)
    with Cluster(args.dir) as cluster:
        print(json.dumps(cluster.run(args.contender, args.sessions, args.turns, turn.Probe(args.bench, args.dir))))


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
"""Checks the image, without a daemon: what it holds, and each service of dist/compose.yaml within its files.

    dist/image/check.py target/image

The folder is the one that dist/image/build.sh has written. As docker would, each service runs its command line as the
image's user, in the image's root, which it cannot write, with its volumes and the names of the other services; then its
health check runs there. Ends with Redis's commands through the gateway, and with what goes wrong: no rights to a volume,
a port in use, a pool larger than /dev/shm. Takes root (for chroot and a network of its own) and PyYAML.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tarfile
import tempfile
import time
from pathlib import Path
from typing import Any

import yaml

COMPOSE = Path(__file__).resolve().parents[1] / "compose.yaml"
SHM_BYTES = 64 << 20


def run(*command: object) -> None:
    subprocess.run([str(part) for part in command], check=True)


def say(what: str) -> None:
    print(f"ok       {what}", flush=True)


class Image:
    """An image's configuration, and its files in a folder."""

    def __init__(self, archive: Path, root: Path) -> None:
        self.root = root
        with tarfile.open(archive) as tar:

            def blob(descriptor: dict[str, Any]) -> Any:
                return tar.extractfile("blobs/" + descriptor["digest"].replace(":", "/"))

            index = json.load(tar.extractfile("index.json"))
            manifest = json.load(blob(index["manifests"][0]))
            self.config = json.load(blob(manifest["config"]))["config"]
            for layer in manifest["layers"]:
                with tarfile.open(fileobj=blob(layer), mode="r|*") as files:
                    files.extractall(root)
        # Mount points, which a daemon makes.
        for folder in ["proc", "dev", "data", "tmp"]:
            (root / folder).mkdir(exist_ok=True)
        (root / "etc/hosts").touch()

    @property
    def user(self) -> int:
        return int(self.config["User"].split(":")[0])


class Container:
    """A process in the image's files, with mounts of its own."""

    def __init__(self, image: Image, folder: Path, hosts: Path, data: Path | None = None) -> None:
        self.image = image
        self.root = folder / "root"
        self.root.mkdir(parents=True)
        run("mount", "--bind", image.root, self.root)
        run("mount", "-o", "remount,bind,ro", self.root)
        run("mount", "-t", "proc", "proc", self.root / "proc")
        run("mount", "-t", "tmpfs", "-o", "mode=755", "dev", self.root / "dev")
        for name, minor in [("null", 3), ("zero", 5), ("urandom", 9)]:
            os.mknod(self.root / "dev" / name, 0o20666, os.makedev(1, minor))
            os.chmod(self.root / "dev" / name, 0o666)
        (self.root / "dev/shm").mkdir()
        run("mount", "-t", "tmpfs", "-o", f"size={SHM_BYTES},mode=1777", "shm", self.root / "dev/shm")
        run("mount", "--bind", hosts, self.root / "etc/hosts")
        if data is None:
            # As docker makes a new volume: with the owner of the image's folder.
            data = folder / "data"
            data.mkdir()
            owner = (image.root / "data").stat()
            os.chown(data, owner.st_uid, owner.st_gid)
        run("mount", "--bind", data, self.root / "data")

    def start(self, *words: str, **options: Any) -> subprocess.Popen[str]:
        environment = dict(entry.split("=", 1) for entry in self.image.config["Env"])
        user = self.image.config["User"]
        # By their paths: PATH is the image's.
        setpriv, chroot = shutil.which("setpriv"), shutil.which("chroot")
        inside = [setpriv, "--no-new-privs", chroot, f"--userspec={user}", str(self.root), *words]
        return subprocess.Popen(inside, env={**environment, **options.pop("env", {})}, text=True, **options)

    def farleaf(self, *words: str, **options: Any) -> tuple[int, str]:
        """Exit code, and all that was said."""
        process = self.start(
            *self.image.config["Entrypoint"], *words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, **options
        )
        told = process.communicate(timeout=60)[0]
        return process.returncode, told


def expanded(text: str) -> str:
    """As compose does, with what is set in the environment."""
    return re.sub(r"\$\{(\w+):-([^}]*)\}", lambda found: os.environ.get(found[1], found[2]), text)


def seconds(text: str) -> float:
    return float(text.rstrip("sm")) * (60 if text.endswith("m") else 1)


def wait_healthy(name: str, service: dict[str, Any], container: Container, process: subprocess.Popen[str]) -> None:
    health = service["healthcheck"]
    kind, *command = health["test"]
    assert kind == "CMD", health
    # The image has no shell, and one name alone in its PATH.
    assert command[0] == "farleaf", command
    until = time.monotonic() + seconds(health["start_period"])
    while True:
        assert process.poll() is None, f"{name} has ended with {process.returncode}"
        code, told = container.farleaf(*command[1:])
        if code == 0:
            return
        assert time.monotonic() < until, f"{name} is not healthy: {told}"
        time.sleep(0.1)


def redis(address: tuple[str, int], *lines: str) -> list[str]:
    """Answers of one line."""
    with socket.create_connection(address, timeout=10) as client, client.makefile("rw", newline="\r\n") as stream:
        answers = []
        for line in lines:
            stream.write(line + "\n")
            stream.flush()
            answer = stream.readline().strip()
            answers.append(stream.readline().strip() if answer.startswith("$") and answer != "$-1" else answer)
        return answers


def check_services(image: Image, folder: Path, hosts: Path, services: dict[str, Any]) -> None:
    running: dict[str, tuple[Container, subprocess.Popen[str]]] = {}
    try:
        waiting = dict(services)
        while waiting:
            ready = [
                name
                for name, service in waiting.items()
                if all(other in running for other in service.get("depends_on", {}))
            ]
            assert ready, f"services wait for each other: {list(waiting)}"
            for name in ready:
                service = waiting.pop(name)
                assert service["read_only"] and service["cap_drop"] == ["ALL"], name
                container = Container(image, folder / name, hosts)
                words = [expanded(word) for word in service["command"]]
                log = (folder / name / "log").open("w")
                process = container.start(*image.config["Entrypoint"], *words, stdout=log, stderr=log)
                running[name] = (container, process)
                wait_healthy(name, service, container, process)
                say(f"service {name}: farleaf {' '.join(words)}")
        gateway = ("127.0.0.1", 6379)
        assert redis(gateway, "PING", "SET ada 1815", "GET ada") == ["+PONG", "+OK", "1815"]
        pool = next(word for word in services["gateway"]["command"] if word.startswith("tcp://"))
        assert running["compute0"][0].farleaf("get", pool, "db0", "ada") == (0, "1815\n")
        say("redis: PING, SET, GET; and the key by another container")
        code, told = running["gateway"][0].farleaf("redis", "mem:", "--address", "0.0.0.0:6379", "--insecure-public")
        assert code == 3 and "--address names another port" in told, told
        code, told = running["memory0"][0].farleaf(
            "memory", "--listen", "memory0:7000", "--insecure-public", "--size", "1MiB"
        )
        assert code == 3 and "in use" in told and "--listen" in told, told
        say("a port in use is named")
    except BaseException:
        for name in running:
            print(f"--- {name}\n{(folder / name / 'log').read_text()}", file=sys.stderr)
        raise
    finally:
        stop = getattr(signal, image.config["StopSignal"])
        for _, process in reversed(running.values()):
            process.send_signal(stop)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(30)
            if process.poll() is None:
                process.kill()
    codes = {name: process.returncode for name, (_, process) in running.items()}
    assert set(codes.values()) == {0}, f"ended with {codes}"
    say(f"{image.config['StopSignal']} ends each in order")


def check_default(image: Image, folder: Path, hosts: Path) -> None:
    container = Container(image, folder / "default", hosts)
    process = container.start(*image.config["Entrypoint"], *image.config["Cmd"], stdout=subprocess.DEVNULL)
    try:
        until = time.monotonic() + 20
        while True:
            try:
                assert redis(("127.0.0.1", 6379), "PING") == ["+PONG"]
                break
            except ConnectionRefusedError:
                assert process.poll() is None and time.monotonic() < until
                time.sleep(0.05)
    finally:
        process.terminate()
        assert process.wait(20) == 0
    say(f"default: farleaf {' '.join(image.config['Cmd'])}")


def check_bad_input(image: Image, folder: Path, hosts: Path) -> None:
    foreign = folder / "foreign"
    foreign.mkdir(mode=0o755)
    (foreign / "memory").touch(mode=0o600)
    container = Container(image, folder / "bad", hosts, data=foreign)
    for words in [
        ["memory", "--file", "/data/memory", "--size", "1MiB", "--listen", "127.0.0.1:0"],
        ["memory", "--file", "/data/other", "--size", "1MiB", "--listen", "127.0.0.1:0"],
        ["put", "shm:/data/pool", "t", "a", "1", "--create", "--pool-bytes", "8MiB"],
    ]:
        code, told = container.farleaf(*words)
        assert code == 3 and f"this process is user {image.user}" in told and "chown" in told, (code, told)
    say("no rights to the volume: the owner and the user are named")
    code, told = container.farleaf("put", "shm:/dev/shm/pool", "t", "a", "1", "--create", "--pool-bytes", "1GiB")
    assert code == 4 and "--shm-size" in told, (code, told)
    say("a pool larger than /dev/shm: --shm-size is named")


def check_files(image: Image, out: Path) -> None:
    program = image.root / "usr/bin/farleaf"
    sections = subprocess.run(["readelf", "-SW", program], check=True, capture_output=True, text=True).stdout
    assert ".debug_line" not in sections and ".symtab" not in sections and ".gnu_debuglink" in sections

    def build_id(file: Path) -> str:
        notes = subprocess.run(["readelf", "-nW", file], check=True, capture_output=True, text=True).stdout
        return re.search(r"Build ID: (\w+)", notes)[1]

    assert build_id(program) == build_id(out / "farleaf.debug")
    say("the program has no debug information, and farleaf.debug is its own")
    libraries = list((image.root / "usr/lib").glob("*/libibverbs.so.1"))
    assert libraries, "libibverbs is missing: verbs:// would not work"
    folders = ["bin", "sbin", "usr/bin", "usr/sbin", "usr/local/bin"]
    programs = [path for folder in folders for path in (image.root / folder).glob("*")]
    special = [path for path in image.root.rglob("*") if path.is_file() and path.stat().st_mode & 0o6000]
    assert programs == [program] and not special, f"other programs: {programs + special}"
    assert image.user != 0 and (image.root / "data").stat().st_uid == image.user
    say(f"user {image.user}, no other program")


def main() -> int:
    if len(sys.argv) != 2:
        print(__doc__, file=sys.stderr)
        return 2
    if os.environ.get("FARLEAF_IMAGE_INSIDE") != "1":
        # Mounts and a network of its own, which go with it.
        os.environ["FARLEAF_IMAGE_INSIDE"] = "1"
        os.execvp("unshare", ["unshare", "--net", "--mount", "--propagation", "private", sys.executable, *sys.argv])
    out = Path(sys.argv[1]).resolve()
    services = yaml.safe_load(COMPOSE.read_text())["services"]
    os.environ.setdefault("FARLEAF_MEMORY_SIZE", "64MiB")
    folder = Path(tempfile.mkdtemp(prefix="farleaf-image-"))
    try:
        folder.chmod(0o755)
        image = Image(out / "farleaf.oci.tar", folder / "image")
        check_files(image, out)
        # Each service has an address, by its name.
        run("ip", "link", "set", "lo", "up")
        hosts = folder / "hosts"
        lines = ["127.0.0.1 localhost"]
        for number, name in enumerate(services):
            run("ip", "address", "add", f"10.89.0.{number + 10}/32", "dev", "lo")
            lines.append(f"10.89.0.{number + 10} {name}")
        hosts.write_text("\n".join(lines) + "\n")
        check_default(image, folder, hosts)
        check_services(image, folder, hosts, services)
        check_bad_input(image, folder, hosts)
    finally:
        mounts = [line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()]
        for mount in reversed([mount for mount in mounts if mount.startswith(f"{folder}/")]):
            subprocess.run(["umount", "--lazy", mount], check=False)
        shutil.rmtree(folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())

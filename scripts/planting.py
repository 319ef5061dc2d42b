# SPDX-License-Identifier: Apache-2.0
"""Changes planted in a copy of the checkout, each in a view of its own: plant-faults and semantic-mutants.

The copy is built once. A change is planted in an overlay file system over the copy, at the same path, in a mount
namespace of its own. So a build there compiles what the change touches and no more, many changes are tried at the same
time, and what one leaves behind is gone with its view. Where the system allows no such namespace (Linux 5.11 allows it
to everybody) changes are planted in the copy itself, one after the other, and taken back.

As a program this is what runs inside a view: it reads one change as JSON and prints what came of it as JSON.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import ctypes
import fcntl
import hashlib
import json
import os
import queue
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SHARED_MEMORY = Path("/dev/shm")
# Which build targets a stage's program needs, where its name alone does not say it.
NEEDS = {"test_c": ["test_c", "moxie_sim"]}


def tracked() -> list[str]:
    """The files of the checkout, relative to its root."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "-co", "--exclude-standard"], cwd=ROOT, check=True, capture_output=True
    ).stdout.decode()
    return sorted(name for name in listed.split("\0") if name and (ROOT / name).is_file())


def environment(tree: Path, shards: int = 1) -> dict[str, str]:
    values = {
        "MOXIE_CACHE_DIR": str(tree / "build/test-cache"),
        "MOXIE_SIM_REPORT": os.devnull,
        "MOXIE_SIM_THREADS": "1",
        "MOXIE_TEST_SEED": "1",
    }
    if shards > 1:
        values |= {"GTEST_TOTAL_SHARDS": str(shards), "GTEST_SHARD_INDEX": "0"}
    return os.environ | values


def command_lines(stage: dict) -> list[list[str]]:
    """The command lines of a stage: a GoogleTest program with a filter, or test_c once with each of its arguments."""
    program, tests = stage["program"], stage["tests"]
    path = f"build/bin/{program}"
    if program == "test_c":
        return [[path, name] for name in tests.split(":")]
    return [[path, f"--gtest_filter={tests}", "--gtest_fail_fast", "--gtest_brief=1"]]


def die_with_parent() -> None:
    """Called by a new process, so that it does not go on when the run that began it is killed."""
    pr_set_pdeathsig = 1
    ctypes.CDLL(None).prctl(pr_set_pdeathsig, int(signal.SIGKILL))


def limit(cpu_seconds: int) -> None:
    """A mutant may ask for any amount of memory, or never end."""
    die_with_parent()
    resource.setrlimit(resource.RLIMIT_CPU, (cpu_seconds, cpu_seconds + 5))
    resource.setrlimit(resource.RLIMIT_DATA, (12 << 30, 12 << 30))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def call(command: list[str], tree: Path, timeout: float, shards: int = 1) -> tuple[int | None, str, float]:
    """The exit status (None: it did not end), the end of what was said, and the processor's seconds.

    `timeout` is in seconds of the processor, which other work on the machine does not change. What sleeps forever is
    ended after twenty times as long.
    """
    with tempfile.TemporaryFile() as said:
        begin = resource.getrusage(resource.RUSAGE_CHILDREN)
        process = subprocess.Popen(
            command, cwd=tree, env=environment(tree, shards), stdin=subprocess.DEVNULL, stdout=said,
            stderr=subprocess.STDOUT, start_new_session=True, preexec_fn=lambda: limit(int(timeout) + 1),
        )  # fmt: skip
        try:
            status = process.wait(20 * timeout)
        except subprocess.TimeoutExpired:
            status = None
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        end = resource.getrusage(resource.RUSAGE_CHILDREN)
        size = said.seek(0, os.SEEK_END)
        said.seek(max(0, size - (1 << 20)))
        text = said.read().decode(errors="replace")
    if status == -signal.SIGXCPU:
        status = None
    return status, text, end.ru_utime + end.ru_stime - begin.ru_utime - begin.ru_stime


def run_stage(stage: dict, tree: Path) -> tuple[str, list[str]]:
    """Runs the tests of a stage: passed, failed, rejected (a kernel does not compile) or none (no such test)."""
    for command in command_lines(stage):
        status, text, seconds = call(command, tree, stage["timeout"], stage.get("shards", 1))
        stage["took"] = stage.get("took", 0) + seconds
        if status is None:
            begun = re.findall(r"^\[ RUN      \] (?!\S*DISABLED_)(\S+)$", text, re.MULTILINE)
            return "failed", [f"{begun[-1] if begun else stage['program']} (no end in {stage['timeout']:.0f} s)"]
        # A disabled test has failed in a process that another test has started.
        failed = re.findall(r"^\[  FAILED  \] (?!\S*DISABLED_)(\S+?),? .*\(\d+ ms\)$", text, re.MULTILINE)
        if re.search(r"NVRTC .* rejects a kernel", text) and status != 0:
            return "rejected", failed
        if status != 0:
            return "failed", failed or [f"{' '.join(command[:2])} (ended with {status})"]
        if "[  PASSED  ] 0 tests" in text:
            return "none", []
    return "passed", []


def build(tree: Path, programs: list[str], jobs: int, timeout: float = 600) -> str:
    """Builds programs. Returns the end of what the compiler said, or nothing when all is well. A step of the build may
    take `timeout` seconds of the processor, since a change may keep a program that the build runs from ending.
    """
    targets = sorted({target for program in programs for target in NEEDS.get(program, [program])})
    status, said = call(["cmake", "--build", "build", "-j", str(jobs), "--target", *targets], tree, timeout)[:2]
    return "" if status == 0 else said[-2000:] or "the build was ended"


def outputs(tree: Path) -> dict[str, str]:
    """The digests of what tests load and run."""
    files = [*sorted((tree / "build/bin").glob("*")), *sorted((tree / "build/lib").rglob("*.so*"))]
    return {
        str(path.relative_to(tree)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files if path.is_file()
    }


def images(tree: Path) -> dict[str, str]:
    """The compiled kernels in the cache of the tests: the digest of the image, by the name of the entry."""
    found = {}
    for path in (tree / "build/test-cache").glob("*.*"):
        with path.open("rb") as file:
            header = file.readline(400).split()
        if len(header) == 5 and header[0] == b"moxie-cache":
            found[path.name] = header[4].decode()
    return found


def try_change(change: dict, tree: Path) -> dict:
    """Plants a change, builds and runs its stages until one fails. The caller takes the change back."""
    for name, text in change["files"].items():
        (tree / name).write_text(text)
    begin = time.monotonic()
    before = change.get("outputs", {})
    known = change.get("images")  # None: the stages compile too few to tell
    for stage in change["stages"]:
        said = build(tree, [stage["program"]], change["jobs"])
        if said:
            return {"status": "does not compile", "by": [], "said": said}
        built = time.monotonic() - begin
        outcome, failed = run_stage(stage, tree)
        if outcome == "rejected" and change.get("embedded"):
            return {"status": "does not compile", "by": failed}
        if outcome == "none" and stage.get("may_lack"):
            continue
        if outcome != "passed":
            status = "no test has this name" if outcome == "none" else "killed"
            took = {"program": stage["program"], "built": round(built, 1)}
            return {"status": status, "by": failed, "stage": stage} | took
    same = False
    if before:
        # Programs that no stage has built are as they were.
        same = all(before.get(name) == digest for name, digest in outputs(tree).items())
        if not same and known is not None:
            same = set(images(tree).values()) <= set(known)
    took = sum(stage.get("took", 0) for stage in change["stages"])
    return {"status": "same machine code" if same else "survived", "by": [], "cpu": round(took, 1)}


class Copy:
    """The copy of the checkout, its build, and the views in which changes are planted."""

    def __init__(self, folder: Path, jobs: int, here: bool = False):
        """With `here` the checkout itself, with its build folder, takes the place of the copy: there must be views."""
        self.folder = folder.resolve()
        self.folder.mkdir(parents=True, exist_ok=True)
        # Views may lie in a folder that all share, so their names say whose they are.
        self.prefix = f".view-{key_of(str(self.folder))}-"
        self.hold = (self.folder / "lock").open("w")
        try:
            # The system takes the lock back when this process ends, however it ends.
            fcntl.flock(self.hold, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            sys.exit(f"planting: another run uses {self.folder}; --folder names another place")
        self.tree = ROOT if here else self.folder / "tree"
        self.jobs = jobs
        self.digest = hashlib.sha256()
        self.names = tracked()
        if not here:
            self.copy_files()
        self.enter = self.find_namespace()
        for scratch in (self.folder, SHARED_MEMORY):
            for left in scratch.glob(f"{self.prefix}*"):
                self.remove_view(left)
        self.lock = threading.Lock()
        self.running: set[subprocess.Popen] = set()
        self.given_up = False
        # Tests that have passed in a view without any change: the program, the filter, every how many of it.
        self.sound: set[tuple[str, str, int]] = set()
        self.cpus: queue.SimpleQueue = queue.SimpleQueue()
        for cpu in sorted(os.sched_getaffinity(0)):
            self.cpus.put(cpu)

    def copy_files(self) -> None:
        for name in self.names:
            data = (ROOT / name).read_bytes()
            self.digest.update(f"{name} {len(data)} ".encode() + data)
            place = self.tree / name
            if not place.is_file() or place.read_bytes() != data:
                place.parent.mkdir(parents=True, exist_ok=True)
                place.write_bytes(data)
            place.chmod((ROOT / name).stat().st_mode)
        wanted = set(self.names)
        for path in self.tree.rglob("*"):
            inside = path.relative_to(self.tree)
            if inside.parts[0] not in ("build", ".deps") and path.is_file() and str(inside) not in wanted:
                path.unlink()
        if (ROOT / ".deps").is_dir() and not (self.tree / ".deps").exists():
            (self.tree / ".deps").symlink_to(ROOT / ".deps")

    def find_namespace(self) -> list[str]:
        """The command that enters a namespace in which an overlay can be mounted here, or nothing."""
        for scratch in (self.folder, SHARED_MEMORY):
            # What runs in a view ends with it, a compiler that a build began included: its first process is its init.
            alone = ["--mount", "--pid", "--fork", "--kill-child"]
            for as_root in ([], ["--user", "--map-root-user"]):
                command = ["unshare", *as_root, *alone]
                if os.geteuid() != 0 and not as_root:
                    continue
                try:
                    with tempfile.TemporaryDirectory(prefix=self.prefix, dir=scratch) as place:
                        for name in ("upper", "work"):
                            (Path(place) / name).mkdir()
                        mount = overlay(self.tree, Path(place))
                        done = subprocess.run([*command, *mount], capture_output=True)
                        # What an overlay leaves in its folder is not its user's to read.
                        shutil.rmtree(Path(place) / "work", ignore_errors=True)
                        (Path(place) / "work").mkdir(exist_ok=True)
                except OSError:
                    continue
                if done.returncode == 0:
                    self.scratch = scratch
                    return command
        self.scratch = self.folder
        return []

    def prepare(self, programs: list[str]) -> str:
        """Configures and builds the copy as it stands. Returns what the compiler said when that fails."""
        if not (self.tree / "build/CMakeCache.txt").exists():
            # Of a folder compiled as one file all would be compiled anew for every change.
            status, said = call(["cmake", "--preset", "default", "-DMOXIE_UNITY=OFF"], self.tree, 600)[:2]
            if status != 0:
                return said[-2000:]
        return build(self.tree, programs, self.jobs)

    def plant(self, change: dict) -> dict:
        """What comes of one change, in a view of its own and on a core of its own."""
        begin = time.monotonic()
        if self.enter:
            cpu = self.cpus.get()
            try:
                result = self.plant_in_view(change | {"cpu": cpu})
                stage = result.pop("stage", None)
                if stage and result["status"] == "killed" and not self.is_sound(stage, result["by"][0], cpu):
                    return {"status": "given up"}
            finally:
                self.cpus.put(cpu)
        else:
            with self.lock:
                good = {name: (self.tree / name).read_text() for name in change["files"]}
                try:
                    result = try_change(change, self.tree)
                    result.pop("stage", None)
                finally:
                    for name, text in good.items():
                        (self.tree / name).write_text(text)
        return result | {"seconds": round(time.monotonic() - begin, 1)}

    def is_sound(self, stage: dict, killer: str, cpu: int) -> bool:
        """Does the test that has failed pass in a view without any change? Exits when it does not: it fails for what a
        view is, and would be said to notice every change. False: all was given up before it had passed.
        """
        named = re.match(r"build/bin/test_c (\w+) |([\w/]+\.[\w/.]+)(?: |$)", killer)
        tests = named[1] or named[2] if named else stage["tests"]
        shards = 1 if named else stage.get("shards", 1)
        key = (stage["program"], tests, shards)
        if key in self.sound:
            return True
        alone = {"program": stage["program"], "tests": tests, "shards": shards, "timeout": stage["timeout"]}
        result = self.plant_in_view({"files": {}, "jobs": 1, "stages": [alone], "cpu": cpu})
        if result["status"] == "given up":
            return False
        if result["status"] != "survived":
            raise SystemExit(f"planting: {stage['program']} {tests} fails in a view without any change: {result}")
        self.sound.add(key)
        return True

    def plant_in_view(self, change: dict) -> dict:
        place = Path(tempfile.mkdtemp(prefix=self.prefix, dir=self.scratch))
        try:
            for name in ("upper", "work", "tmp"):
                (place / name).mkdir()
            command = [*self.enter, sys.executable, __file__, str(self.tree), str(place)]
            with self.lock:
                if self.given_up:
                    return {"status": "given up"}
                process = subprocess.Popen(
                    command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                    preexec_fn=die_with_parent,
                )  # fmt: skip
                self.running.add(process)
            said, why = process.communicate(json.dumps(change).encode())
            self.running.discard(process)
            if self.given_up and process.returncode != 0:
                return {"status": "given up"}
            if process.returncode != 0:
                raise RuntimeError(why.decode(errors="replace")[-2000:])
            return json.loads(said)
        finally:
            self.remove_view(place)

    def give_up(self) -> None:
        """Ends the changes that are being tried in views; each results in the status "given up"."""
        with self.lock:
            self.given_up = True
            for process in self.running:
                process.kill()

    def remove_view(self, place: Path) -> None:
        # The overlay's work folder may hold a folder without permissions, which root alone may remove.
        subprocess.run([*self.enter, "rm", "-rf", str(place)], capture_output=True)

    def plant_all(self, changes, workers: int):
        """Yields (change, result) of every change as they end."""
        workers = min(workers, len(os.sched_getaffinity(0))) if self.enter else 1
        with concurrent.futures.ThreadPoolExecutor(workers) as pool:
            pending = {}
            changes = iter(changes)
            ended = False
            while pending or not ended:
                while not ended and len(pending) < workers:
                    change = next(changes, None)
                    if change is None:
                        ended = True
                    else:
                        pending[pool.submit(self.plant, change)] = change
                done, _ = concurrent.futures.wait(pending, return_when=concurrent.futures.FIRST_COMPLETED)
                for future in done:
                    yield pending.pop(future), future.result()


class Results:
    """Lines of JSON with a key each, so that a run that was stopped goes on where it was."""

    def __init__(self, path: Path, again: bool):
        self.path = path
        self.known: dict[str, dict] = {}
        if path.exists() and not again:
            for line in path.read_text().splitlines():
                try:
                    result = json.loads(line)
                except json.JSONDecodeError:
                    continue  # the end of a run that was killed
                self.known[result["key"]] = result

    def add(self, result: dict) -> dict:
        with self.path.open("a") as file:
            file.write(json.dumps(result) + "\n")
        self.known[result["key"]] = result
        return result


def key_of(*parts: str) -> str:
    digest = hashlib.sha256()
    for part in parts:
        digest.update(f" {len(part)} {part}".encode())
    return digest.hexdigest()[:32]


def overlay(tree: Path, place: Path) -> list[str]:
    options = f"lowerdir={tree},upperdir={place / 'upper'},workdir={place / 'work'}"
    return ["mount", "-t", "overlay", "overlay", "-o", options, str(tree)]


def main() -> int:
    die_with_parent()
    tree, place = Path(sys.argv[1]), Path(sys.argv[2])
    change = json.load(sys.stdin)
    # Programs that start a thread for each core would otherwise start them all for every change.
    os.sched_setaffinity(0, {change["cpu"]})
    subprocess.run(overlay(tree, place), check=True)
    # Tests of other views have files of the same names there.
    if not tree.is_relative_to("/tmp"):
        subprocess.run(["mount", "-t", "tmpfs", "tmpfs", "/tmp"], check=True)
    json.dump(try_change(change, tree), sys.stdout)
    return 0


if __name__ == "__main__":
    sys.exit(main())

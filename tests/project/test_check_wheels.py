"""What `make wheels` holds wheels to: each limit is exceeded by a planted fault."""

from __future__ import annotations

import re
import shutil
import zipfile
from collections.abc import Callable
from pathlib import Path

import lief
import pytest

from omnidraft.models.native.prebuilt import PLATFORMS, Platform, object_path, probe_path
from support.project_files import ROOT, tool

check = tool("check_wheels")
LINUX, ARM, MAC, WINDOWS = (
    PLATFORMS[tag] for tag in ("manylinux_2_28_x86_64", "manylinux_2_28_aarch64", "macosx_11_0_arm64", "win_amd64")
)
SYSTEM = Path("/", "usr", "lib", "libSystem.C.dylib")
TAGS = {platform: tag for tag, platform in PLATFORMS.items()}
Change = Callable[[bytes], bytes]


@pytest.fixture(autouse=True)
def _disassembler() -> None:
    if shutil.which("llvm-objdump") is None:
        pytest.skip("there is no llvm-objdump")


def wheel_for(platform: Platform) -> Path:
    """The wheel that `make wheels` has made of this source."""
    for path in (ROOT / ".wheels").glob(f"*-{TAGS[platform]}.whl"):
        with zipfile.ZipFile(path) as wheel:
            if f"{check.FOLDER}/{probe_path(platform.system).name}" in wheel.namelist():
                return path
    pytest.skip("there is no wheel of this source: make wheels")


def read(platform: Platform, level: str) -> bytes:
    path = probe_path(platform.system) if level == check.PROBE else object_path(level, platform.system)
    with zipfile.ZipFile(wheel_for(platform)) as wheel:
        return wheel.read(f"{check.FOLDER}/{path.name}")


def said_of(content: bytes, platform: Platform, level: str) -> list[str]:
    return list(check.object_problems(content, platform, level))


def replaced(old: bytes, new: bytes) -> Change:
    def change(content: bytes) -> bytes:
        assert len(old) == len(new)
        assert old in content
        return content.replace(old, new)

    return change


def needing_macos_12(content: bytes) -> bytes:
    binary = lief.parse(content)
    assert isinstance(binary, lief.MachO.Binary)
    assert binary.build_version is not None
    place = binary.build_version.command_offset + 12  # after the command, its size, and the platform
    return content[:place] + (12 << 16).to_bytes(4, "little") + content[place + 4 :]


def without_signature(content: bytes) -> bytes:
    binary = lief.parse(content)
    assert isinstance(binary, lief.MachO.Binary)
    assert binary.code_signature is not None
    place = binary.code_signature.command_offset
    return content[:place] + (0x7F).to_bytes(4, "little") + content[place + 4 :]


def with_a_changed_byte(content: bytes) -> bytes:
    return content[:0x5000] + bytes([content[0x5000] ^ 1]) + content[0x5001:]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("platform", "level", "of", "said"),
    [
        (LINUX, "x86_64_v4+avx512vnni", "x86_64_v4", "it has no vpdpbusd"),
        (LINUX, "x86_64_v4+avx512vnni", "x86_64_v3", "it has no vpdpbusd, it has no zmm"),
        (LINUX, "x86_64_v4", "x86_64_v4+avx512vnni", r"it has \d+ vpdpbusd, .*, it has \d+ vpdpwssd, .*"),
        (LINUX, "x86_64_v4", "x86_64_v3", "it has no zmm"),
        (LINUX, "x86_64_v3+avxvnni", "x86_64_v3", "it has no vpdpbusd"),
        (LINUX, "x86_64_v3", "x86_64_v3+avxvnni", r"it has \d+ vpdpbusd, .*"),
        (LINUX, "x86_64_v3", "x86_64_v4", r"it has \d+ k, .*, it has \d+ zmm, .*"),
        (WINDOWS, "x86_64_v3", "x86_64_v4", r"it has \d+ k, .*, it has \d+ zmm, .*"),
        (ARM, "aarch64+dotprod+i8mm", "aarch64+dotprod", "it has no smmla"),
        (ARM, "aarch64+dotprod", "aarch64", "it has no sdot"),
        (MAC, "aarch64+dotprod", "aarch64", "it has no sdot"),
        (ARM, "aarch64+dotprod", "aarch64+dotprod+i8mm", r"it has \d+ smmla, .*"),
        (ARM, "aarch64", "aarch64+dotprod", r"it has \d+ sdot, .*"),
        (LINUX, "processor", "x86_64_v3", r"it exports .*, it has \d+ ymm, .*"),
    ],
)
def test_an_object_of_another_level_is_seen(platform: Platform, level: str, of: str, said: str) -> None:
    assert said_of(read(platform, level), platform, level) == []
    found = ", ".join(said_of(read(platform, of), platform, level))
    assert re.fullmatch(said, found), found


@pytest.mark.slow
@pytest.mark.parametrize(
    ("platform", "change", "said"),
    [
        (LINUX, replaced(b"GLIBC_2.14\0", b"GLIBC_2.29\0"), "it needs GLIBC_2.29 of libc.so.6, and systems may have"),
        (ARM, replaced(b"libm.so.6\0", b"libn.so.6\0"), "it needs ['libn.so.6']"),
        (LINUX, replaced(b"apply_group\0", b"apply_grouq\0"), "it exports ['apply_grouq', "),
        (
            MAC,
            replaced(b"libSystem.B.dylib", b"libSystem.C.dylib"),
            f"it needs ['{Path('/', 'usr', 'lib', 'libSystem.C.dylib')}']",
        ),
        (MAC, needing_macos_12, "it needs macOS [12, 0, 0]"),
        (MAC, without_signature, "it has no code signature"),
        (MAC, with_a_changed_byte, "its code signature is that of other code"),
        (WINDOWS, replaced(b"ucrtbase.dll\0", b"msvcrtbs.dll\0"), "it needs ['msvcrtbs.dll']"),
        (WINDOWS, replaced(b"apply_group\0", b"apply_grouq\0"), "it exports ['apply_grouq', "),
        (WINDOWS, lambda _: b"no library", "it is no .dll"),
    ],
)
def test_what_an_object_needs_and_exports_is_seen(platform: Platform, change: Change, said: str) -> None:
    level = "aarch64" if platform.processor == "aarch64" else "x86_64_v3"
    found = said_of(change(read(platform, level)), platform, level)
    assert any(each.startswith(said) for each in found), found


@pytest.mark.slow
@pytest.mark.parametrize("tag", PLATFORMS)
def test_an_object_for_another_platform_is_seen(tag: str) -> None:
    platform, other = PLATFORMS[tag], PLATFORMS["win_arm64" if tag != "win_arm64" else "macosx_11_0_arm64"]
    content = read(platform, check.PROBE)
    assert said_of(content, platform, check.PROBE) == []
    assert said_of(content, other, check.PROBE)[0].startswith("it is ")


@pytest.mark.slow
def test_what_a_wheel_holds_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = wheel_for(MAC)
    with zipfile.ZipFile(made) as wheel:
        contents = {name: wheel.read(name) for name in wheel.namelist() if "/native/" in name or ".dist-info" in name}

    def said_of_wheel(name: str, files: dict[str, bytes]) -> list[str]:
        with zipfile.ZipFile(tmp_path / name, "w") as wheel:
            for place, content in files.items():
                wheel.writestr(place, content)
        said: list[str] = check.problems(tmp_path / name)
        return said

    assert said_of_wheel(made.name, contents) == []
    assert "no tag" in said_of_wheel("omnidraft-0.1.0-py3-none-any.whl", contents)[0]
    said = said_of_wheel("omnidraft-0.1.0-py3-none-win_arm64.whl", contents)
    assert said[0] == "its file WHEEL has another tag than its name"
    assert "and not ['processor-" in said[1]
    left = contents | {f"{check.FOLDER}/step-x86_64_v3-0123.so": b""}
    assert "step-x86_64_v3-0123.so" in said_of_wheel(made.name, left)[0]
    monkeypatch.setattr(check, "MOST_BYTES", 1000)
    assert said_of_wheel(made.name, contents)[0].endswith("bytes, and 1000 are allowed")


def test_without_a_disassembler_nothing_passes(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(SystemExit, match=r"^llvm-objdump is not there, .* apt install llvm$"):
        check.instructions(b"", "x86_64")
    assert check.main([]) == len(PLATFORMS)
    assert "There is no wheel for macosx_11_0_arm64, " in capsys.readouterr().out

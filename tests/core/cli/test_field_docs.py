import builtins
import types

from switchgear.core.cli.field_docs import field_docs
from switchgear.core.config import EngineConfig
from switchgear.core.sampling_params import SamplingParams


class Outer:
    class Base:
        first: int = 1
        """One
        line."""
        second: int = 2

    class Derived(Base):
        third: int = 3
        """Three."""
        first: int = 4
        """Four."""


def test_text_stands_under_its_field() -> None:
    assert field_docs(Outer.Base) == {"first": "One line."}


def test_inherited_fields_are_there_and_the_last_word_counts() -> None:
    assert field_docs(Outer.Derived) == {"first": "Four.", "third": "Three."}


def test_classes_of_the_core_document_every_field() -> None:
    assert list(field_docs(EngineConfig)) == list(EngineConfig.__struct_fields__)
    assert list(field_docs(SamplingParams)) == list(SamplingParams.__dataclass_fields__)


def test_a_class_without_source_has_no_text() -> None:
    assert field_docs(builtins.int) == {}
    assert field_docs(types.new_class("Made")) == {}

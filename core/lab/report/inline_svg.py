"""A picture as a part of a page: its colours follow the page, its names clash with none, and readers are told of it."""

from __future__ import annotations

import re
from xml.etree import ElementTree

from .palette import LIGHT

VARIABLES = {colour: f"var(--{name})" for name, colour in LIGHT.items()}
COLOUR = re.compile("|".join(VARIABLES))
URL = re.compile(r"url\(#([^)]*)\)")
REFERENCE = re.compile(r"""(?:url\(|href=")#([^)"]*)""")
FONT = re.compile(r"(font: [^;]*?px) [^;]*|(font-family:) [^;]*")
"""The shorthand ends with the family; matplotlib writes either."""


def inline_svg(svg: bytes, name: str, title: str, description: str) -> str:
    """The `<svg>` element that matplotlib wrote, to stand in HTML.

    name: unique in the page; every identifier begins with it. The description is what a screen reader reads out.
    """
    root = ElementTree.fromstring(svg)
    width = float(root.attrib["width"].removesuffix("pt"))
    used = set(REFERENCE.findall(svg.decode()))
    for element in root.iter():
        # inside HTML no element and no attribute has a name space
        element.tag = bare(element.tag)
        element.attrib = {
            bare(key): local(bare(key), value, name)
            for key, value in element.attrib.items()
            if key != "id" or value in used
        }
    drop(root, "metadata")
    # its rules would hold for the whole page
    drop(root, "style")
    view = root.attrib["viewBox"]
    root.attrib = {
        "viewBox": view,
        "role": "img",
        "aria-labelledby": f"{name}-title",
        "aria-describedby": f"{name}-description",
        "style": f"--width: {width:g}pt",
    }
    for tag, text in (("desc", description), ("title", title)):
        element = ElementTree.Element(tag, {"id": f"{name}-{'title' if tag == 'title' else 'description'}"})
        element.text = text
        root.insert(0, element)
    return ElementTree.tostring(root, encoding="unicode", short_empty_elements=True)


def bare(name: str) -> str:
    return name.rpartition("}")[2]


def local(key: str, value: str, name: str) -> str:
    """The value of an attribute, with references to the page's own identifiers and colours."""
    if key == "id":
        return f"{name}-{value}"
    if key == "href":
        return f"#{name}-{value.removeprefix('#')}"
    if key == "style":
        value = FONT.sub(r"\1\2 var(--font)", value)
    if key == "d":
        value = " ".join(value.split())
    value = URL.sub(rf"url(#{name}-\1)", value)
    return COLOUR.sub(lambda match: VARIABLES[match.group()], value)


def drop(root: ElementTree.Element, tag: str) -> None:
    for parent in list(root.iter()):
        for child in parent.findall(tag):
            parent.remove(child)

"""Before any test module imports one of TitanRL's submodules."""

from glimmer.titanrl import ensure_importable

ensure_importable()

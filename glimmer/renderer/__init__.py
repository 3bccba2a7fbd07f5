"""Stage 6, messages <-> token ids: the Muse Glimmer renderer, its parser and the parity gate.

Names are resolved on first use, so that a rule's code fingerprint covers only what it uses.
"""

from glimmer.lazy import lazy

__all__, __getattr__, __dir__ = lazy(
    __name__,
    {
        "CHAT_TEMPLATE": "glimmer.renderer.template",
        "MuseGlimmerRenderer": "glimmer.renderer.muse_glimmer",
        "MuseGlimmerRendererConfig": "glimmer.renderer.config",
        "load_renderer": "glimmer.renderer.load",
        "released_tokenizer": "glimmer.renderer.released",
        "check_parity": "glimmer.renderer.parity",
        "parse_completion": "glimmer.renderer.parse",
    },
)

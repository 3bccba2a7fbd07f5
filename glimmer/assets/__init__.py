"""Assets: hub repository, local folder or bundled -> verified files and a manifest of their sha256.

Names are resolved on first use, so that a reader of questions loads no download code, and so that a
rule's code fingerprint covers only what its stage uses.
"""

from glimmer.lazy import lazy

__all__, __getattr__, __dir__ = lazy(
    __name__,
    {
        "fetch_checkpoint": "glimmer.assets.fetch",
        "fetch_corpus": "glimmer.assets.fetch",
        "fetch_questions": "glimmer.assets.fetch",
        "check_checkpoint": "glimmer.assets.checkpoint",
        "manifest_names": "glimmer.assets.manifest",
        "verified_folder": "glimmer.assets.manifest",
        "verify_manifest": "glimmer.assets.manifest",
        "write_manifest": "glimmer.assets.manifest",
        "source_files": "glimmer.assets.sources",
        "source_state": "glimmer.assets.sources",
        "Passage": "glimmer.assets.corpus",
        "CorpusStats": "glimmer.assets.corpus",
        "read_corpus": "glimmer.assets.corpus",
        "validate_corpus": "glimmer.assets.corpus",
        "Question": "glimmer.assets.questions",
        "QuestionStats": "glimmer.assets.questions",
        "read_questions": "glimmer.assets.questions",
        "validate_questions": "glimmer.assets.questions",
    },
)

"""Glimmer: the library behind the pipeline, one subpackage per stage. Knows nothing of Snakemake.

Data flows assets -> renderer -> retrieval -> search_r1 -> training -> parity -> heldout; a later
package may import an earlier one, never the reverse.
"""

__version__ = "0.1.0"

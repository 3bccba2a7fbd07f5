"""What ships in `resources/`: the toy world, its tokenizer and the tiny checkpoint, each seeded.

Enters: a seed and step counts. Leaves: corpus and questions in the layouts of wiki-18 and
Search-R1, and a Hugging Face checkpoint folder. Nothing here runs in a normal pipeline run; the
rules `bundled_world` and `bundled_checkpoint` make it again from nothing.
"""

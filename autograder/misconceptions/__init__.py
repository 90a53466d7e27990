"""Wrong reference modules, one file a chapter: each mistake has a name and a sentence."""

"""Wrong reference modules, one file a unit: each mistake has a name and a sentence."""

"""Wrong reference modules, a folder a chapter, a file a unit: the reference with one cell changed.

Each mistake has a name and says to the student which one it is and what to do. Many stand in
circulating notes and code. Within an exercise the order matters only where two mistakes give the
same answers to everything that a test asked: the first is then named.
"""

"""Graders, a folder a chapter, a file a unit: pytest files with a group of tests for each exercise.

Tests reach the code to judge through `student` only. Inside a test the cases run from the smallest
to the largest, so that the first failure is the smallest one. Random answers are never compared
value by value, and every statistical bound has a false-alarm rate of at most 1e-9.

Modules are made of earlier exercises. Where one's answer differs from the reference's, the
student's own parts are asked aside and put together as the exercise says: a module that does right
by its parts earns its points, whatever became of the parts (`parts.same_by_parts`).
"""

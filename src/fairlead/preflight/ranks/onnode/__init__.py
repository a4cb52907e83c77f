"""Programs that run on nodes, in parts that pipe.py joins into one file each: Python 3.9, standard library.

They say what they see and judge nothing. Nothing here imports anything of fairlead but its neighbours.
"""

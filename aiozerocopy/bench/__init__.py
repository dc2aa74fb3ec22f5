"""How fast it is on this machine, compared with others: `aiozerocopy bench`.

Every bench is a module of its name with a function `races`.  They share `racing`
(rounds and ratios), `feeding` (the processes of a run) and `report`.
"""

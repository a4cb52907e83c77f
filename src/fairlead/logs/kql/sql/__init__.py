"""The part of a query that the store's engine answers: SQL of ClickHouse, embedded or as a server.

Only what means exactly the same in both languages is said in SQL; an operator that cannot be, and all behind it, runs
here on the rows that the SQL before it leaves.
"""

"""The pages under docs/reference/, made from the code so that they cannot drift from it. One module makes each page."""

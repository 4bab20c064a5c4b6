"""Who may do what, how much of it, and why not: rules, profiles, limits and breakers, as parts without a store or a socket."""

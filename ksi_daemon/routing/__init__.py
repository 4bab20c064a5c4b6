"""The path of every call and notice: the router, the recording around it, deadlines and the notice bus."""

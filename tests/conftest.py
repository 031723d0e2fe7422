"""What holds for every test."""

from hypothesis import settings

# On a busy machine a case of milliseconds now and then takes a second, which says nothing of it.
settings.register_profile("no deadline", deadline=None)
settings.load_profile("no deadline")

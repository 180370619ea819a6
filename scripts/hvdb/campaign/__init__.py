"""Scaling studies from 1 to 512 ranks: described once, rendered as job scripts, submitted, watched and resumed.

The user's documentation is docs/campaigns.md. Pure modules: spec, site, plan, timing, launch, directives, script.
Modules that read or change the outside world: folder (files), stores, events (logs of jobs), scheduler (programs),
life, status. Python 3.11, standard library only, because login nodes have little else.
"""

"""Scaling studies from 1 to 512 ranks: described once, rendered as job scripts, submitted, watched and resumed.

docs/campaigns.md is the user's page. Pure parts: spec, site, plan, timing, launch, directives, script. Parts that
touch the world: folder (files), held (stores), events (logs of jobs), scheduler (programs), life, status.
Python 3.11, standard library only, because login nodes have little else.
"""

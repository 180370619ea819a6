"""Runs scaling studies on 1 to 512 ranks: renders a spec as job scripts, then submits, watches and resumes the jobs.

The user's documentation is docs/campaigns.md. The modules spec, site, plan, timing, launch, directives and script are
pure. The modules folder (files), stores, events (logs of jobs), scheduler (programs), life and status read or change
the outside world. All modules need only Python 3.11 and its standard library, because login nodes have little more.
"""

#!/bin/sh
# Starts the program, which is installed next to this file, or linked next to the link to this file.
exec "$(dirname -- "$0")/abide" "$@"

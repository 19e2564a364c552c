#!/bin/sh
# Runs a compiler, and keeps what ptxas says (-Xptxas=-v) of the object that -o names in a file beside
# it, OBJECT.ptxas. Everything else that the compiler says is passed on.
set -u

object=
previous=
for argument; do
  [ "$previous" = -o ] && object=$argument
  previous=$argument
done
case $object in
  *.o) ;;
  *) exec "$@" ;;
esac
"$@" 2>"$object.ptxas"
status=$?
grep -v -e '^ptxas info' -e 'bytes stack frame' "$object.ptxas" >&2
exit $status

# Long commands with a line that moves, for the other scripts (sourced, bash):
#   watched LABEL LOG COMMAND...   runs COMMAND, whose output goes to the file LOG
#   recorded LOG COMMAND... &      runs COMMAND so, and leaves its exit code in LOG.code
#   await LABEL LOG PID            waits for what `recorded` runs as PID
#   steady LABEL COMMAND...        lets COMMAND speak for itself, and speaks when it is silent
# Standard error says how long it has taken and the last line of LOG: redrawn each second on a terminal, elsewhere a line every
# PROGRESS_SECONDS (4). All return the command's exit code; when a watched one failed, the end of LOG is shown.

progress_line() {  # LABEL LOG SECONDS
  local last
  last=$(tail -c 4096 "$2" 2>/dev/null | tr '\r' '\n' | sed -n '/[^[:space:]]/h;${g;p;}')
  printf '%s  %d s  %s' "$1" "$3" "${last:0:90}"
}

# The shell forgets how a child ended once another one gets its number, which a long build brings about: hence the file.
recorded() {
  log=$1
  shift
  trap 'echo $? >"$log.code"' EXIT
  "$@" >"$log" 2>&1 </dev/null
}

await() {
  local label=$1 log=$2 pid=$3 begin=$SECONDS shown=$SECONDS code=0
  while [ ! -s "$log.code" ] && kill -0 "$pid" 2>/dev/null; do
    if [ -t 2 ]; then
      printf '\r\033[K%s' "$(progress_line "$label" "$log" $((SECONDS - begin)) | cut -c "1-$(($(tput cols 2>/dev/null || echo 80) - 1))")" >&2
      sleep 1
    else
      if ((SECONDS - shown >= ${PROGRESS_SECONDS:-4})); then
        shown=$SECONDS
        printf '%s\n' "$(progress_line "$label" "$log" $((SECONDS - begin)))" >&2
      fi
      sleep 0.2
    fi
  done
  if [ -s "$log.code" ]; then code=$(cat "$log.code"); else wait "$pid" || code=$?; fi
  if [ -t 2 ]; then printf '\r\033[K' >&2; fi
  if [ "$code" = 0 ]; then
    printf '%s  done after %d s\n' "$label" $((SECONDS - begin)) >&2
  else
    tail -n 40 "$log" >&2
    printf '%s  failed with exit code %d; all it said: %s\n' "$label" "$code" "$log" >&2
  fi
  return "$code"
}

watched() {
  local label=$1 log=$2
  shift 2
  rm -f "$log.code"
  recorded "$log" "$@" &
  await "$label" "$log" $!
}

steady() {
  local label=$1 begin=$SECONDS line='' part code
  shift
  "$@" 2>&1 </dev/null | while true; do
    code=0
    IFS= read -r -t "${PROGRESS_SECONDS:-4}" part || code=$?
    line+=$part
    if [ "$code" = 0 ]; then
      printf '%s\n' "$line"
      line=
    elif [ "$code" -gt 128 ]; then  # time is up, in the middle of a line perhaps
      printf '%s  %d s\n' "$label" $((SECONDS - begin)) >&2
    else
      printf '%s' "$line"
      break
    fi
  done
  return "${PIPESTATUS[0]}"
}

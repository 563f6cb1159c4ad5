"""What shells source to complete `tidepool`; the words come from the program itself. Pure."""

from typing import Final

_BASH: Final = """\
_tidepool() {
  local IFS=$'\\n'
  COMPREPLY=($(tidepool __complete "${COMP_WORDS[@]:1:COMP_CWORD}" 2>/dev/null))
}
complete -o default -F _tidepool tidepool
"""
_ZSH: Final = """\
#compdef tidepool
_tidepool() {
  local -a found
  found=("${(@f)$(tidepool __complete "${words[@]:1:$((CURRENT-1))}" 2>/dev/null)}")
  compadd -a found
  _files
}
compdef _tidepool tidepool
"""
_FISH: Final = """\
complete -c tidepool -a '(tidepool __complete (commandline -opc)[2..] (commandline -ct) 2>/dev/null)'
"""
SCRIPTS: Final = {"bash": _BASH, "zsh": _ZSH, "fish": _FISH}

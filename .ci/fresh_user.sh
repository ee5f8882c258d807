#!/usr/bin/env bash
# A wheel as somebody else meets it: a new user, an empty home, no cache, no compiler. Installs,
# runs the demo, an example and the report, uninstalls, and lists what is left. Needs root.
#
#     .ci/fresh_user.sh dist/engram_cl-0.1.0-py3-none-any.whl [PYTHON]
set -euo pipefail
wheel="$(realpath "$1")"
python="$(command -v "${2:-python3}")"
here="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
user="engram-try-$$"

useradd --create-home --shell /bin/bash "$user"
home="$(getent passwd "$user" | cut -d: -f6)"
cleanup() { userdel --remove "$user" 2>/dev/null || true; }
trap cleanup EXIT
cp "$wheel" "$here/constraints.txt" "$here/examples/paper.py" "$home"
mkdir "$home/bin"  # what a small container has, and nothing that compiles
for tool in bash sh env cat ls find sort comm rm mkdir test mktemp uname dirname basename realpath; do
    ln -s "$(command -v "$tool")" "$home/bin/$tool"
done
chown -R "$user:" "$home"

# of the environment only what leads to packages goes along
settings=()
for name in PIP_INDEX_URL PIP_EXTRA_INDEX_URL PIP_FIND_LINKS PIP_CERT SSL_CERT_FILE HTTPS_PROXY; do
    if [[ -n "${!name:-}" ]]; then settings+=("$name=${!name}"); fi
done
su "$user" -s /bin/bash -c "cd && exec env -i HOME='$home' PATH='$home/bin' LANG=C.UTF-8 \
    PYTHON='$python' WHEEL='$(basename "$wheel")' ${settings[*]@Q} bash -euo pipefail" <<'INSIDE'
for tool in gcc cc g++ clang make git; do
    if command -v "$tool"; then echo "a $tool is in reach"; exit 1; fi
done
"$PYTHON" -m venv venv
find . -path ./venv -prune -o -type f -print | sort >before.txt
venv/bin/python -m pip list --format=freeze | sort >packages-before.txt
began=$SECONDS
venv/bin/python -m pip install --quiet --no-cache-dir -c constraints.txt "$WHEEL"
echo "installed in $((SECONDS - began)) s"
began=$SECONDS
venv/bin/engram demo --out demo
test -s demo/report.html
echo "demo in $((SECONDS - began)) s"
began=$SECONDS
venv/bin/engram run --data digits --method Finetune --method ER --set epochs=1 --seeds 2 --out first
venv/bin/engram report first -o report.html
venv/bin/engram metrics first
test -s report.html
echo "an example and its report in $((SECONDS - began)) s"
venv/bin/python -m pip uninstall --quiet --yes engram-cl
if venv/bin/python -c "import engram" 2>/dev/null; then echo "engram is still imported"; exit 1; fi
if find venv -iname '*engram*' | { read -r one && echo "$one"; }; then echo "these files are left"; exit 1; fi
rm -r demo first report.html
find . -path ./venv -prune -o -type f -print | sort >after.txt
left="$(comm -13 before.txt after.txt | { while read -r one; do
    case "$one" in ./before.txt | ./after.txt | ./packages-before.txt) ;; *) echo "$one" ;; esac
done; })"
if [[ -n "$left" ]]; then echo "left in the home directory:"; echo "$left"; exit 1; fi
echo "uninstalled; nothing is left"
INSIDE

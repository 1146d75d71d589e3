# Installs the packages named as arguments, without a question.
#
# A server package of Debian or Ubuntu makes and starts a cluster of its own, which
# nobody here wants. postgresql-common is told so for as long as this takes.
set -e
defaults=/etc/postgresql-common/createcluster.d
mkdir -p "$defaults"
printf 'create_main_cluster = false\n' >"$defaults/geodlq.conf"
trap 'rm -f "$defaults/geodlq.conf"; rmdir "$defaults" 2>/dev/null || :' EXIT
trap 'exit 1' HUP INT TERM
DEBIAN_FRONTEND=noninteractive NEEDRESTART_SUSPEND=1 \
	apt-get -qq -y -o DPkg::Lock::Timeout=120 install --no-install-recommends "$@"

# Makes the directory named by the mktemp template $1, says its name, and keeps it
# for the process at the other end of standard input. One line each:
#
#   adopt <pgid>    kill this process group, too, when standard input ends
#   release <pgid>  do not: it has ended
#
# When standard input ends it kills the groups and removes the directory.
trap '' INT HUP PIPE
umask 077
dir=$(mktemp -d "$1") || exit 1
groups=' '

finish() {
	for group in $groups; do
		kill -s KILL -- "-$group" 2>/dev/null
	done
	# A process that is ending may still be writing: try again until it is gone.
	tries=0
	until rm -rf "$dir" 2>/dev/null || [ "$tries" -ge 50 ]; do
		tries=$((tries + 1))
		sleep 0.1
	done
	[ ! -e "$dir" ]
	exit
}
trap finish TERM

# Others may pass through the directory, not list it.
chmod 711 "$dir"
echo "dir $dir"
while read -r verb group; do
	case $verb in
	adopt) groups="$groups$group " ;;
	release) groups="${groups%% "$group" *} ${groups#* "$group" }" ;;
	esac
done
finish

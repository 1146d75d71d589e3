# Keeps a throw-away PostgreSQL cluster for the process at the other end of
# standard input.
#
#   $1        mktemp template of the cluster's directory
#   $2        directory of initdb and postgres
#   PGSECRET  password of the superuser "postgres"
#
# It says "dir <directory>", then "cluster made" or "cluster failed", and then obeys, one line each:
#
#   start <port> <option>...  start the server; says "pid <n>", and "exited <code>" whenever it ends
#   stop <signal>             send the signal to the server, wait for its end; says "stopped"
#
# When standard input ends it stops the server at once and removes the directory.
trap '' INT HUP PIPE
umask 077
bin=$2
dir=$(mktemp -d "$1") || exit 1
echo "dir $dir"

watcher=
# The server begins its life as a background process of a shell, and those ignore
# SIGINT and SIGQUIT until they say otherwise. So the signal is repeated until the
# server is gone; it takes a second one for nothing new.
stop() {
	[ -n "$watcher" ] || return 0
	server=$(cat "$dir/server.pid")
	tries=0
	while kill -s "$1" "$server" 2>/dev/null; do
		tries=$((tries + 1))
		# Only an end without a checkpoint is sure to be quick.
		if [ "$1" = QUIT ] && [ "$tries" -eq 200 ]; then
			kill -s KILL "$server" 2>/dev/null
		fi
		sleep 0.05
	done
	wait "$watcher" 2>/dev/null
	watcher=
}

finish() {
	stop QUIT
	tries=0
	until rm -rf "$dir" 2>/dev/null || [ "$tries" -ge 50 ]; do
		tries=$((tries + 1))
		sleep 0.1
	done
	[ ! -e "$dir" ]
	exit
}
trap finish TERM

printf '%s\n' "$PGSECRET" >"$dir/secret"
unset PGSECRET
if "$bin/initdb" -D "$dir/data" --username=postgres --pwfile="$dir/secret" --auth=scram-sha-256 \
	--encoding=UTF8 --locale=C --no-sync >"$dir/initdb.log" 2>&1 </dev/null; then
	echo cluster made
else
	echo cluster failed
fi
rm -f "$dir/secret"

while read -r verb rest; do
	case $verb in
	start)
		# shellcheck disable=SC2086 # the options hold no blanks
		set -- $rest
		port=$1
		shift
		: >"$dir/server.pid"
		(
			sh -c 'echo $$ >"$0" && exec "$@"' "$dir/server.pid" \
				"$bin/postgres" -D "$dir/data" -p "$port" "$@" >>"$dir/server.log" 2>&1 </dev/null
			echo "exited $?"
		) &
		watcher=$!
		# Nothing is written where the disk is full, and the server does not start.
		tries=0
		until [ -s "$dir/server.pid" ] || [ "$tries" -ge 1000 ]; do
			tries=$((tries + 1))
			sleep 0.01
		done
		echo "pid $(cat "$dir/server.pid")"
		;;
	stop)
		stop "$rest"
		echo stopped
		;;
	esac
done
finish

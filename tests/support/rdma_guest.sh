# In a guest of rdmavm.py: a soft RoCE device, two queue pairs that talk, a connection by rdma_cm; what kernel, tool and
# the watch say of them. $1: Python; $2: the watch; $3: its settings; $4: rdma_asks.py
set -e

# until_true SECONDS COMMAND: a guest without hardware help is slow, so everything is waited for
until_true() {
    left=$1
    shift
    while ! "$@" >/dev/null 2>&1; do
        left=$((left - 1))
        if [ $left -le 0 ]; then echo "never: $*"; rdma resource show qp; tail -n 3 /tmp/watch/*; return 1; fi
        sleep 1
    done
}
num_of() { [ "$(rdma resource show $1 | grep -c "$2")" -ge "$3" ]; }
says() { grep -q "$1" /tmp/watch/now.json; }
records() { grep -q "$1" /tmp/watch/audit.jsonl; }

ip link add e0 type veth peer name e1
ip addr add 192.168.7.1/24 dev e0
ip link set e0 up
ip link set e1 up
rdma link add rxe0 type rxe netdev e0
until_true 60 grep -q ACTIVE /sys/class/infiniband/rxe0/ports/1/state
"$1" -I -S -u "$2" "$3" >/tmp/out/watch.log 2>&1 &
watch=$!
until_true 120 says '"rxe0/1"'
ibv_rc_pingpong -d rxe0 -g 1 -n 100000000 -s 1024 >/dev/null 2>&1 &
server=$!
until_true 60 num_of qp "type RC" 1
ibv_rc_pingpong -d rxe0 -g 1 -n 100000000 -s 1024 192.168.7.1 >/dev/null 2>&1 &
client=$!
until_true 60 num_of qp "type RC state RTS" 2
kill -STOP $server $client
rping -s -a 192.168.7.1 -C 100000000 >/dev/null 2>&1 &
rserver=$!
until_true 60 num_of cm_id LISTEN 1
rping -c -a 192.168.7.1 -C 100000000 >/dev/null 2>&1 &
rclient=$!
until_true 60 num_of qp "type RC state RTS" 4
# what they have made stays, and nothing changes any more
kill -STOP $rserver $rclient
sleep 1
for what in qp cm_id mr ctx; do rdma -d -j resource show $what >/tmp/out/rdma-$what.json; done
rdma -d -j dev show >/tmp/out/rdma-dev.json
"$1" "$4" >/tmp/out/netlink.json
echo "$server $client $rserver $rclient" >/tmp/out/pids
until_true 60 says '"num_qps":5'
until_true 60 records "\"pid\":$rclient"
cp /tmp/watch/now.json /tmp/out/now-busy.json
kill -KILL $server $client $rserver $rclient
until_true 60 says '"num_qps":1'
rdma link del rxe0
until_true 60 says port-down
cp /tmp/watch/now.json /tmp/out/now-after.json
kill $watch
wait $watch || true
cp /tmp/watch/audit.jsonl /tmp/out/
uname -r >/tmp/out/kernel

#!/bin/bash
# The first process of the virtual machine: mounts what the tests need, runs them in a control group
# of their own, and turns the machine off. `run.py` passes the words on the kernel's command line.
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
mountpoint -q /proc || mount -t proc proc /proc
mountpoint -q /sys || mount -t sysfs sys /sys
mountpoint -q /dev || mount -t devtmpfs dev /dev
mkdir -p /dev/shm
mount -t tmpfs shm /dev/shm
mount -t tmpfs run /run
mount -t cgroup2 cgroup /sys/fs/cgroup
modprobe virtio_blk
modprobe ext4
mount /dev/vda /tmp
ip link set lo up
for word in $(cat /proc/cmdline); do
    case "$word" in
        tests.root=*) cd "${word#*=}" ;;
        tests.python=*) python="${word#*=}" ;;
        tests.only=*) only="${word#*=}" ;;
    esac
done
export HOME=/tmp PYTHONPATH="$PWD" PYTHONDONTWRITEBYTECODE=1 OMP_NUM_THREADS=1
echo "+memory +pids" >/sys/fs/cgroup/cgroup.subtree_control
mkdir /sys/fs/cgroup/finetune
(
    echo "$BASHPID" >/sys/fs/cgroup/finetune/cgroup.procs
    exec "$python" -m pytest -p no:cacheprovider --color=no --basetemp=/tmp/pytest --durations=5 \
        ${only:+-k "${only//,/ or }"} tests/supervision/limits/test_stage_group.py
)
echo "tests ended with status $?"
echo o >/proc/sysrq-trigger
sleep 60

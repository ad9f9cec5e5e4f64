# Boots systemd on a copy-on-write view of this machine, in namespaces of its own: unshare ... bash boot.sh DIRECTORY TREE...
# The view lives in memory and goes with the namespaces. Its network is its own loopback. Trees are there even where it begins empty.
set -e
view=$1
shift
mount --make-rprivate /
mount -t tmpfs -o size=4g tmpfs "$view"
mkdir -p "$view/changes" "$view/work" "$view/root"
mount -t overlay overlay -o "lowerdir=/,upperdir=$view/changes,workdir=$view/work" "$view/root"
cd "$view/root"
mount -t proc proc proc
mount -t sysfs sysfs sys
mount -t cgroup2 cgroup2 sys/fs/cgroup
mount -t tmpfs tmpfs run
mount -t tmpfs tmpfs tmp
mount -t tmpfs -o mode=755 tmpfs dev
for device in null zero full random urandom tty; do
    touch "dev/$device"
    mount --bind "/dev/$device" "dev/$device"
done
mkdir -p dev/shm dev/pts dev/mqueue before
mount -t tmpfs tmpfs dev/shm
mount -t devpts -o newinstance,ptmxmode=0666 devpts dev/pts
ln -s pts/ptmx dev/ptmx
ln -s /proc/self/fd dev/fd
for tree; do
    [[ $tree == /tmp/* || $tree == /run/* || $tree == /dev/shm/* ]] || continue
    own=$view/trees$tree
    mkdir -p "$own/changes" "$own/work" ".$tree"
    mount -t overlay overlay -o "lowerdir=$tree,upperdir=$own/changes,workdir=$own/work" ".$tree"
done
ip link set lo up
# Nothing of what this machine happens to have enabled starts: only what systemd itself brings.
rm -rf etc/systemd/system/*.wants etc/rc?.d etc/init.d opt/shardbroker etc/shardbroker
rm -f etc/machine-id
touch etc/machine-id
for unit in systemd-udevd systemd-logind systemd-networkd systemd-resolved systemd-timesyncd getty.target; do
    ln -sf /dev/null "etc/systemd/system/${unit%.target}$([[ $unit == *.target ]] && echo .target || echo .service)"
done
ln -sf /lib/systemd/system/multi-user.target etc/systemd/system/default.target
pivot_root . before
exec chroot . /bin/bash -c '
    umount -l /before
    export container=test
    exec /lib/systemd/systemd --system --log-target=console --show-status=0 </dev/null >/run/boot.log 2>&1'

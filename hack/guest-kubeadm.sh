# Adds the files for control planes to the full guest: kubeadm and its images. hack/guest-full.sh sources this
# script.

kind=guest-kubeadm
size=1000M

# add_variant adds kubeadm, and the files that its checks and the commands of user data require, to the tree $1.
add_variant() {
	local root=$1
	log "adding kubeadm and the images of a control plane"
	ln -s kubernetes "$root/usr/local/bin/kubeadm"
	ln -s kubernetes "$root/usr/local/bin/kubectl"
	cp -R "$repository/guest/kubeadm/root/." "$root/"
	[[ -e $root/var/run ]] || ln -s ../run "$root/var/run"
	# kubeadm checks the kernel's configuration.
	dpkg-deb --fsys-tarfile "$kernel" | tar -C "$root" -x --wildcards './boot/config-*'
	add_control_plane "$root"
	find "$root" -newermt @0 -exec touch -h -d @0 {} +
}

# add_control_plane adds the images of a control plane under the names that this version of kubeadm uses, so that it
# needs neither options nor a registry. They share a layer with the executable of all programs.
add_control_plane() {
	local root=$1 dir=$temporary/control-plane image name entries=()
	mkdir -p "$dir"
	executable_layer "$dir/kubernetes.tar"
	proxy_layer "$root" "$dir/proxy.tar"
	while read -r image; do
		name=${image##*/} name=${name%%:*}
		case $name in
		kube-proxy) entries+=("$(image "$dir" "$image" kubernetes.tar proxy.tar)") ;;
		kube-* | etcd) entries+=("$(image "$dir" "$image" kubernetes.tar)") ;;
		pause) also_named "$root" container.tar "$image" ;;
		coredns) also_named "$root" coredns.tar "$image" ;;
		*) fail "kubeadm requires an unknown image: $image" ;;
		esac
	done < <("$controlplane/kubeadm" config images list --kubernetes-version "$("$controlplane/kubeadm" version -o short)")
	(IFS=, && printf '[%s]' "${entries[*]}") >"$dir/manifest.json"
	archive "$dir" "$root/usr/lib/millwright/images/control-plane.tar"
	rm -rf "$dir"
}

# executable_layer creates the layer $1 with the executable and its names.
executable_layer() {
	local dir=$temporary/layer name
	mkdir -p "$dir"/usr/local/bin "$dir/tmp"
	cp "$controlplane/kubernetes" "$dir/usr/local/bin/"
	for name in etcd kube-apiserver kube-controller-manager kube-scheduler kube-proxy; do
		ln -s kubernetes "$dir/usr/local/bin/$name"
	done
	archive "$dir" "$1"
	rm -rf "$dir"
}

# proxy_layer creates the layer $2 with the programs that kube-proxy calls, and their libraries, from the tree $1.
proxy_layer() {
	local root=$1 dir=$temporary/layer libraries=usr/lib/x86_64-linux-gnu loader=lib64/ld-linux-x86-64.so.2 file
	mkdir -p "$dir"/{usr/sbin,lib64,$libraries/xtables}
	cp -P "$root"/usr/sbin/{nft,xtables-nft-multi,iptables,iptables-save,iptables-restore,ip6tables,ip6tables-save,ip6tables-restore} "$dir/usr/sbin/"
	cp "$root/$libraries"/xtables/*.so "$dir/$libraries/xtables/"
	cp -L "$root/$loader" "$dir/$loader"
	while read -r file; do
		cp -L "$file" "$dir/$libraries/"
	done < <(
		for file in usr/sbin/nft usr/sbin/xtables-nft-multi; do
			"$root/$loader" --library-path "$root/$libraries" --list "$root/$file"
		done | sed -n 's/.* => \(.*\) (0x.*/\1/p' | sort -u
	)
	archive "$dir" "$2"
	rm -rf "$dir"
}

# image writes the configuration of the image $2, with the layers in the remaining arguments, to the directory $1,
# and prints its entry in the archive's manifest.
image() {
	local dir=$1 image=$2 layer digests=() names=() config
	shift 2
	for layer; do
		digests+=("\"sha256:$(sha256sum <"$dir/$layer" | cut -d' ' -f1)\"")
		names+=("\"$layer\"")
	done
	config=${image##*/} config=${config%%:*}.json
	printf '{"architecture":"amd64","os":"linux","config":{"Entrypoint":["/usr/local/bin/%s"],"Env":["PATH=/usr/local/bin:/usr/sbin"]},"rootfs":{"type":"layers","diff_ids":[%s]}}' \
		"${config%.json}" "$(IFS=, && echo "${digests[*]}")" >"$dir/$config"
	printf '{"Config":"%s","RepoTags":["%s"],"Layers":[%s]}' "$config" "$image" "$(IFS=, && echo "${names[*]}")"
}

# also_named adds the name $3 to the image in the archive $2 of the tree $1.
also_named() {
	local path=$1/usr/lib/millwright/images/$2 dir=$temporary/renamed
	mkdir -p "$dir"
	tar -C "$dir" -xf "$path"
	sed -i "s|\"RepoTags\":\[|&\"$3\",|" "$dir/manifest.json"
	archive "$dir" "$path"
	rm -rf "$dir"
}

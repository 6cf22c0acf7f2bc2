# What the full guest has beside for control planes: kubeadm, and the images that it wants. hack/guest-full.sh
# sources it.

kind=guest-kubeadm
size=1000M

# add_variant adds kubeadm, and what its checks and the commands of user data look for, to the tree $1.
add_variant() {
	local root=$1
	say "adding kubeadm and the images of a control plane"
	ln -s kubernetes "$root/usr/local/bin/kubeadm"
	ln -s kubernetes "$root/usr/local/bin/kubectl"
	cp -R "$repository/guest/kubeadm/root/." "$root/"
	[[ -e $root/var/run ]] || ln -s ../run "$root/var/run"
	# kubeadm looks at the kernel's configuration.
	dpkg-deb --fsys-tarfile "$kernel" | tar -C "$root" -x --wildcards './boot/config-*'
	add_control_plane "$root"
	find "$root" -newermt @0 -exec touch -h -d @0 {} +
}

# add_control_plane adds the images of a control plane under the names by which this kubeadm looks for them,
# so that it needs no option and no registry. They share a layer, the executable of all programs.
add_control_plane() {
	local root=$1 folder=$temporary/control-plane image name entries=()
	mkdir -p "$folder"
	executable_layer "$folder/kubernetes.tar"
	proxy_layer "$root" "$folder/proxy.tar"
	while read -r image; do
		name=${image##*/} name=${name%%:*}
		case $name in
		kube-proxy) entries+=("$(image "$folder" "$image" kubernetes.tar proxy.tar)") ;;
		kube-* | etcd) entries+=("$(image "$folder" "$image" kubernetes.tar)") ;;
		pause) also_named "$root" container.tar "$image" ;;
		coredns) also_named "$root" coredns.tar "$image" ;;
		*) fail "kubeadm wants an image that is not known here: $image" ;;
		esac
	done < <("$controlplane/kubeadm" config images list --kubernetes-version "$("$controlplane/kubeadm" version -o short)")
	(IFS=, && printf '[%s]' "${entries[*]}") >"$folder/manifest.json"
	archive "$folder" "$root/usr/lib/millwright/images/control-plane.tar"
	rm -rf "$folder"
}

# executable_layer makes the layer $1 with the executable and its names.
executable_layer() {
	local folder=$temporary/layer name
	mkdir -p "$folder"/usr/local/bin "$folder/tmp"
	cp "$controlplane/kubernetes" "$folder/usr/local/bin/"
	for name in etcd kube-apiserver kube-controller-manager kube-scheduler kube-proxy; do
		ln -s kubernetes "$folder/usr/local/bin/$name"
	done
	archive "$folder" "$1"
	rm -rf "$folder"
}

# proxy_layer makes the layer $2 with the programs that kube-proxy calls, and their libraries, from the tree $1.
proxy_layer() {
	local root=$1 folder=$temporary/layer libraries=usr/lib/x86_64-linux-gnu loader=lib64/ld-linux-x86-64.so.2 file
	mkdir -p "$folder"/{usr/sbin,lib64,$libraries/xtables}
	cp -P "$root"/usr/sbin/{nft,xtables-nft-multi,iptables,iptables-save,iptables-restore,ip6tables,ip6tables-save,ip6tables-restore} "$folder/usr/sbin/"
	cp "$root/$libraries"/xtables/*.so "$folder/$libraries/xtables/"
	cp -L "$root/$loader" "$folder/$loader"
	while read -r file; do
		cp -L "$file" "$folder/$libraries/"
	done < <(
		for file in usr/sbin/nft usr/sbin/xtables-nft-multi; do
			"$root/$loader" --library-path "$root/$libraries" --list "$root/$file"
		done | sed -n 's/.* => \(.*\) (0x.*/\1/p' | sort -u
	)
	archive "$folder" "$2"
	rm -rf "$folder"
}

# image writes the configuration of the image $2, with the layers after it, into the folder $1, and prints its
# entry of the archive's manifest.
image() {
	local folder=$1 image=$2 layer digests=() names=() config
	shift 2
	for layer; do
		digests+=("\"sha256:$(sha256sum <"$folder/$layer" | cut -d' ' -f1)\"")
		names+=("\"$layer\"")
	done
	config=${image##*/} config=${config%%:*}.json
	printf '{"architecture":"amd64","os":"linux","config":{"Entrypoint":["/usr/local/bin/%s"],"Env":["PATH=/usr/local/bin:/usr/sbin"]},"rootfs":{"type":"layers","diff_ids":[%s]}}' \
		"${config%.json}" "$(IFS=, && echo "${digests[*]}")" >"$folder/$config"
	printf '{"Config":"%s","RepoTags":["%s"],"Layers":[%s]}' "$config" "$image" "$(IFS=, && echo "${names[*]}")"
}

# also_named gives the image in the archive $2 of the tree $1 the name $3 too.
also_named() {
	local path=$1/usr/lib/millwright/images/$2 folder=$temporary/renamed
	mkdir -p "$folder"
	tar -C "$folder" -xf "$path"
	sed -i "s|\"RepoTags\":\[|&\"$3\",|" "$folder/manifest.json"
	archive "$folder" "$path"
	rm -rf "$folder"
}

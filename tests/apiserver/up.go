package main

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/pem"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"math/big"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"time"

	"go.etcd.io/etcd/server/v3/embed"
	restclient "k8s.io/client-go/rest"
)

// up starts etcd (unless -etcd names a running one) and kube-apiserver in this
// process, with keys, tokens and a kubeconfig which it makes in -dir. Every
// listener is on 127.0.0.1 or a unix socket. A second run on the same -dir
// finds the keys and the data of the first.
func up(args []string) error {
	start := time.Now()
	f := flag.NewFlagSet("up", flag.ExitOnError)
	dir := f.String("dir", "", "folder for keys, kubeconfig and etcd data (required)")
	port := f.Int("port", 0, "port of the API server on 127.0.0.1 (0: a free one)")
	etcdURL := f.String("etcd", "", "use this etcd instead of starting one (unix:///DIR/etcd.sock of another run)")
	etcdPort := f.Int("etcd-port", 0, "serve etcd on this port of 127.0.0.1 too (0: only on DIR/etcd.sock)")
	kubeconfig := f.String("kubeconfig", "", "where to write the admin kubeconfig (default DIR/kubeconfig)")
	controllers := f.Bool("controllers", true, "run the namespace, garbage collector, service account and root CA controllers")
	fsync := f.Bool("fsync", false, "let etcd fsync (only matters if the machine itself may crash)")
	_ = f.Parse(args)
	if *dir == "" {
		return errors.New("-dir is required")
	}
	d, err := filepath.Abs(*dir)
	if err != nil {
		return err
	}
	if *kubeconfig == "" {
		*kubeconfig = filepath.Join(d, "kubeconfig")
	}
	if *port == 0 {
		if *port, err = freePort(); err != nil {
			return err
		}
	}
	keys, err := ensureKeys(d)
	if err != nil {
		return err
	}

	if *etcdURL == "" {
		e, err := startEtcd(d, *etcdPort, *fsync)
		if err != nil {
			return err
		}
		defer e.Close()
		*etcdURL = "unix://" + filepath.Join(d, "etcd.sock")
	}
	server := fmt.Sprintf("https://127.0.0.1:%d", *port)
	if err := writeKubeconfig(*kubeconfig, server, keys); err != nil {
		return err
	}

	p := func(n string) string { return filepath.Join(d, "pki", n) }
	flags := []string{
		"--bind-address=127.0.0.1",
		fmt.Sprintf("--secure-port=%d", *port),
		"--advertise-address=127.0.0.1",
		"--endpoint-reconciler-type=none", // a loopback address is no valid Endpoints address
		"--etcd-servers=" + *etcdURL,
		"--tls-cert-file=" + p("server.crt"),
		"--tls-private-key-file=" + p("server.key"),
		"--client-ca-file=" + p("ca.crt"),
		"--token-auth-file=" + p("tokens.csv"),
		"--authorization-mode=RBAC",
		"--service-account-issuer=" + issuer,
		"--service-account-signing-key-file=" + p("sa.key"),
		"--service-account-key-file=" + p("sa.key"),
		"--service-cluster-ip-range=10.96.0.0/16",
		"--allow-privileged=true",
		"--profiling=false",
		"--shutdown-watch-termination-grace-period=1s", // else an open watch keeps SIGTERM waiting for 60s
	}
	if !*controllers {
		// nothing makes the default service accounts: let pods do without
		flags = append(flags, "--disable-admission-plugins=ServiceAccount")
	}
	flags = append(flags, f.Args()...)

	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	cfg := &restclient.Config{
		Host: server, BearerToken: keys.token, QPS: -1,
		TLSClientConfig: restclient.TLSClientConfig{CAFile: p("ca.crt")},
	}
	go func() {
		if err := waitReady(ctx, cfg); err != nil {
			return
		}
		fmt.Printf("ready %s after %.2fs, kubeconfig %s, etcd %s\n", server, time.Since(start).Seconds(), *kubeconfig, *etcdURL)
		if *controllers {
			if err := runControllers(ctx, cfg, keys.ca); err != nil {
				fmt.Fprintln(os.Stderr, "controllers:", err)
				os.Exit(1)
			}
		}
	}()
	if code := apiserver(flags); code != 0 {
		return fmt.Errorf("kube-apiserver ended with code %d", code)
	}
	return nil
}

func startEtcd(dir string, port int, fsync bool) (*embed.Etcd, error) {
	sock := func(n string) url.URL { return url.URL{Scheme: "unix", Path: filepath.Join(dir, n)} }
	cfg := embed.NewConfig()
	cfg.Dir = filepath.Join(dir, "etcd")
	cfg.UnsafeNoFsync = !fsync
	cfg.LogLevel = "error"
	cfg.QuotaBackendBytes = 4 << 30
	cfg.ListenPeerUrls = []url.URL{sock("peer.sock")}
	cfg.AdvertisePeerUrls = cfg.ListenPeerUrls
	cfg.ListenClientUrls = []url.URL{sock("etcd.sock")}
	if port != 0 {
		cfg.ListenClientUrls = append(cfg.ListenClientUrls, url.URL{Scheme: "http", Host: fmt.Sprintf("127.0.0.1:%d", port)})
	}
	cfg.AdvertiseClientUrls = cfg.ListenClientUrls
	cfg.InitialCluster = cfg.InitialClusterFromName(cfg.Name)
	if err := os.MkdirAll(cfg.Dir, 0o700); err != nil {
		return nil, err
	}
	e, err := embed.StartEtcd(cfg)
	if err != nil {
		return nil, fmt.Errorf("etcd: %w", err)
	}
	select {
	case <-e.Server.ReadyNotify():
		return e, nil
	case err := <-e.Err():
		return nil, fmt.Errorf("etcd: %w", err)
	case <-time.After(60 * time.Second):
		e.Close()
		return nil, errors.New("etcd: not ready after 60s")
	}
}

func waitReady(ctx context.Context, cfg *restclient.Config) error {
	c, err := restclient.HTTPClientFor(cfg)
	if err != nil {
		return err
	}
	for {
		if r, err := c.Get(cfg.Host + "/readyz"); err == nil {
			r.Body.Close()
			if r.StatusCode == 200 {
				return nil
			}
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(20 * time.Millisecond):
		}
	}
}

func freePort() (int, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return 0, err
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port, nil
}

type keySet struct {
	ca, adminCert, adminKey []byte
	token                   string
}

// ensureKeys makes DIR/pki once: a CA which signs the serving certificate and
// the admin's client certificate, the service account key, and an admin token.
func ensureKeys(dir string) (*keySet, error) {
	pki := filepath.Join(dir, "pki")
	at := func(n string) string { return filepath.Join(pki, n) }
	if _, err := os.Stat(at("done")); errors.Is(err, fs.ErrNotExist) {
		if err := os.MkdirAll(pki, 0o700); err != nil {
			return nil, err
		}
		now := time.Now()
		notAfter := now.AddDate(10, 0, 0)
		caKey, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
		if err != nil {
			return nil, err
		}
		ca := &x509.Certificate{
			SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "sidewatch-apiserver-ca"},
			NotBefore: now.Add(-time.Hour), NotAfter: notAfter, IsCA: true, BasicConstraintsValid: true,
			KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature,
		}
		caDER, err := x509.CreateCertificate(rand.Reader, ca, ca, &caKey.PublicKey, caKey)
		if err != nil {
			return nil, err
		}
		if ca, err = x509.ParseCertificate(caDER); err != nil {
			return nil, err
		}
		leaf := func(name string, t *x509.Certificate) error {
			k, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
			if err != nil {
				return err
			}
			t.NotBefore, t.NotAfter, t.KeyUsage = ca.NotBefore, notAfter, x509.KeyUsageDigitalSignature
			der, err := x509.CreateCertificate(rand.Reader, t, ca, &k.PublicKey, caKey)
			if err != nil {
				return err
			}
			return errors.Join(writePEM(at(name+".crt"), "CERTIFICATE", der), writeKey(at(name+".key"), k))
		}
		saKey, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
		if err != nil {
			return nil, err
		}
		err = errors.Join(
			writePEM(at("ca.crt"), "CERTIFICATE", caDER),
			writeKey(at("ca.key"), caKey),
			writeKey(at("sa.key"), saKey),
			leaf("server", &x509.Certificate{
				SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: "kube-apiserver"},
				ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
				DNSNames:    []string{"localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc"},
				IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1), net.IPv4(10, 96, 0, 1)},
			}),
			leaf("admin", &x509.Certificate{
				SerialNumber: big.NewInt(3), Subject: pkix.Name{CommonName: "admin", Organization: []string{"system:masters"}},
				ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
			}),
			os.WriteFile(at("tokens.csv"), []byte(rand.Text()+`,admin,admin,"system:masters"`+"\n"), 0o600),
			os.WriteFile(at("done"), nil, 0o600),
		)
		if err != nil {
			return nil, err
		}
	}
	k := &keySet{}
	tokens, e0 := os.ReadFile(at("tokens.csv"))
	var e1, e2, e3 error
	k.ca, e1 = os.ReadFile(at("ca.crt"))
	k.adminCert, e2 = os.ReadFile(at("admin.crt"))
	k.adminKey, e3 = os.ReadFile(at("admin.key"))
	k.token, _, _ = strings.Cut(string(tokens), ",")
	return k, errors.Join(e0, e1, e2, e3)
}

func writePEM(path, kind string, der []byte) error {
	return os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600)
}

func writeKey(path string, k *ecdsa.PrivateKey) error {
	der, err := x509.MarshalECPrivateKey(k)
	if err != nil {
		return err
	}
	return writePEM(path, "EC PRIVATE KEY", der)
}

func writeKubeconfig(path, server string, k *keySet) error {
	b := base64.StdEncoding.EncodeToString
	return os.WriteFile(path, fmt.Appendf(nil, `apiVersion: v1
kind: Config
clusters:
- name: apiserver
  cluster: {server: %q, certificate-authority-data: %s}
users:
- name: admin
  user: {client-certificate-data: %s, client-key-data: %s}
- name: admin-token
  user: {token: %s}
contexts:
- name: apiserver
  context: {cluster: apiserver, user: admin}
- name: apiserver-token
  context: {cluster: apiserver, user: admin-token}
current-context: apiserver
`, server, b(k.ca), b(k.adminCert), b(k.adminKey), k.token), 0o600)
}

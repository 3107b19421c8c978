package main

import (
	"context"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/kubernetes/pkg/apis/core"
	"k8s.io/kubernetes/pkg/serviceaccount"
)

const issuer = "https://kubernetes.default.svc.cluster.local"

// keysCommand makes DIR/pki and, for the API server at -server, an admin kubeconfig.
func keysCommand(args []string) error {
	f := flag.NewFlagSet("keys", flag.ExitOnError)
	dir := f.String("dir", "", "folder of the keys (required)")
	server := f.String("server", "", "URL of the API server (required)")
	kubeconfig := f.String("kubeconfig", "", "where to write the admin kubeconfig (required)")
	_ = f.Parse(args)
	if *dir == "" || *server == "" || *kubeconfig == "" {
		return errors.New("-dir, -server and -kubeconfig are required")
	}
	keys, err := ensureKeys(*dir)
	if err != nil {
		return err
	}
	return writeKubeconfig(*kubeconfig, *server, keys)
}

// leeway is how long after its expiry the API server still accepts a token, for clocks that differ.
const leeway = time.Minute

// tokenCommand prints a token of a service account that the API server accepts as one of its own. Its TokenRequest
// gives none of less than ten minutes; this gives any, so that a test can see one expire.
func tokenCommand(args []string) error {
	f := flag.NewFlagSet("token", flag.ExitOnError)
	dir := f.String("dir", "", "folder of the keys (required)")
	namespace := f.String("namespace", "default", "namespace of the service account")
	name := f.String("name", "", "name of the service account (required)")
	uid := f.String("uid", "", "uid of the service account (required)")
	expires := f.Duration("expires", 0, "how long the token holds (required)")
	_ = f.Parse(args)
	if *dir == "" || *name == "" || *uid == "" || *expires <= 0 {
		return errors.New("-dir, -name, -uid and -expires are required")
	}
	text, err := os.ReadFile(filepath.Join(*dir, "pki", "sa.key"))
	if err != nil {
		return err
	}
	block, _ := pem.Decode(text)
	if block == nil {
		return errors.New("sa.key holds no key")
	}
	key, err := x509.ParseECPrivateKey(block.Bytes)
	if err != nil {
		return err
	}
	generator, err := serviceaccount.JWTTokenGenerator(issuer, key)
	if err != nil {
		return err
	}
	account := core.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: *namespace, Name: *name, UID: types.UID(*uid)}}
	claims, private, err := serviceaccount.Claims(account, nil, nil, nil, nil, nil, int64((*expires - leeway).Seconds()), 0, []string{issuer}, nil)
	if err != nil {
		return err
	}
	token, err := generator.GenerateToken(context.Background(), claims, private)
	if err != nil {
		return err
	}
	fmt.Println(token)
	return nil
}

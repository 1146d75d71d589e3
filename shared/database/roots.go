package database

import (
	"crypto/x509"
	"embed"
	"fmt"
	"os"
	"path"
)

// Amazon RDS signs its servers' certificates with authorities of its own, one per
// region and key type, that no system trusts by itself. RDS Proxy uses AWS
// Certificate Manager, whose authorities every system knows.
//
//go:embed roots/*.pem
var embedded embed.FS

// defaultRoots is the system's authorities and Amazon RDS's.
func defaultRoots() (*x509.CertPool, error) {
	pool, err := x509.SystemCertPool()
	if err != nil {
		pool = x509.NewCertPool() // an image without authorities still reaches RDS
	}
	entries, err := embedded.ReadDir("roots")
	if err != nil {
		return nil, fmt.Errorf("read the embedded certificate authorities: %w", err)
	}
	for _, e := range entries {
		pem, err := embedded.ReadFile(path.Join("roots", e.Name()))
		if err != nil {
			return nil, fmt.Errorf("read the embedded certificate authorities: %w", err)
		}
		if !pool.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("read the embedded certificate authorities: %s holds no certificate", e.Name())
		}
	}
	return pool, nil
}

// rootsFile is the authorities in a PEM file and no others.
func rootsFile(name string) (*x509.CertPool, error) {
	pem, err := os.ReadFile(name)
	if err != nil {
		return nil, fmt.Errorf("open the database: read DATABASE_CA_FILE: %w", err)
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(pem) {
		return nil, fmt.Errorf("open the database: DATABASE_CA_FILE %s holds no PEM certificate", name)
	}
	return pool, nil
}

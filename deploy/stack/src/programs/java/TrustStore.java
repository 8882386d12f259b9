import java.io.FileInputStream;
import java.io.FileOutputStream;
import java.security.KeyStore;
import java.security.cert.Certificate;
import java.security.cert.CertificateFactory;

/** Makes Java's file of trusted certificates (second argument) from PEM certificates (first argument). */
public class TrustStore {
    public static void main(String[] arguments) throws Exception {
        // JKS: Java reads it without a password.
        KeyStore store = KeyStore.getInstance("JKS");
        store.load(null, null);
        try (FileInputStream bundle = new FileInputStream(arguments[0])) {
            int number = 0;
            for (Certificate certificate : CertificateFactory.getInstance("X.509").generateCertificates(bundle)) {
                store.setCertificateEntry("certificate-" + number++, certificate);
            }
        }
        try (FileOutputStream file = new FileOutputStream(arguments[1])) {
            store.store(file, "changeit".toCharArray());
        }
    }
}

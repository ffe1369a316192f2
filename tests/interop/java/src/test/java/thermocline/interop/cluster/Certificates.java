package thermocline.interop.cluster;

import java.io.ByteArrayInputStream;
import java.io.IOException;
import java.io.InputStream;
import java.nio.file.Files;
import java.nio.file.Path;
import java.security.KeyStore;
import java.security.cert.Certificate;
import java.util.ArrayList;
import java.util.Base64;
import java.util.List;
import java.util.concurrent.TimeUnit;

/** An authority, and PEM files of what it issues; made by the JDK's {@code keytool}. */
public final class Certificates {
    private static final String PASSWORD = "changeit";
    private static final String CA = "ca";

    private final Path dir;
    private final Path store;

    /** Makes an authority in {@code dir}. */
    Certificates(Path dir) throws Exception {
        this.dir = Files.createDirectories(dir);
        store = dir.resolve("store.p12");
        keytool("-genkeypair", "-alias", CA, "-dname", "CN=authority", "-ext", "bc:c", "-keyalg", "EC");
        Files.writeString(authority(), pem("CERTIFICATE", open().getCertificate(CA).getEncoded()));
    }

    /** The authority's certificate. */
    public Path authority() {
        return dir.resolve("ca.pem");
    }

    /** A certificate that {@link #issue} made. */
    public Path certificate(String name) {
        return dir.resolve(name + ".pem");
    }

    /** The private key of a certificate that {@link #issue} made. */
    public Path key(String name) {
        return dir.resolve(name + ".key");
    }

    /** Issues a certificate under {@code name} for the address 127.0.0.1. */
    Certificates issue(String name) throws Exception {
        Path request = dir.resolve(name + ".csr");
        Path issued = dir.resolve(name + ".crt");
        keytool("-genkeypair", "-alias", name, "-dname", "CN=" + name, "-keyalg", "EC");
        keytool("-certreq", "-alias", name, "-file", request.toString());
        keytool("-gencert", "-alias", CA, "-infile", request.toString(), "-outfile", issued.toString(),
            "-ext", "san=ip:127.0.0.1");
        keytool("-importcert", "-alias", name, "-file", issued.toString(), "-noprompt");
        KeyStore keys = open();
        Certificate certificate = keys.getCertificate(name);
        Files.writeString(certificate(name), pem("CERTIFICATE", certificate.getEncoded()));
        Files.writeString(key(name), pem("PRIVATE KEY", keys.getKey(name, PASSWORD.toCharArray()).getEncoded()));
        return this;
    }

    private KeyStore open() throws Exception {
        KeyStore keys = KeyStore.getInstance("PKCS12");
        try (InputStream in = new ByteArrayInputStream(Files.readAllBytes(store))) {
            keys.load(in, PASSWORD.toCharArray());
        }
        return keys;
    }

    private void keytool(String... words) throws Exception {
        List<String> command = new ArrayList<>();
        command.add(Path.of(System.getProperty("java.home"), "bin", "keytool").toString());
        command.addAll(List.of(words));
        command.addAll(List.of("-keystore", store.toString(), "-storetype", "PKCS12", "-storepass", PASSWORD));
        Process process = new ProcessBuilder(command).redirectErrorStream(true)
            .redirectOutput(dir.resolve("keytool.log").toFile()).start();
        if (!process.waitFor(60, TimeUnit.SECONDS) || process.exitValue() != 0) {
            process.destroyForcibly();
            throw new IOException(words[0] + ": " + Files.readString(dir.resolve("keytool.log")));
        }
    }

    private static String pem(String what, byte[] content) {
        String lines = Base64.getMimeEncoder(64, new byte[] {'\n'}).encodeToString(content);
        return "-----BEGIN " + what + "-----\n" + lines + "\n-----END " + what + "-----\n";
    }
}

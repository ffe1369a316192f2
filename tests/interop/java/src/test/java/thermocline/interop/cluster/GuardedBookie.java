package thermocline.interop.cluster;

import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.security.MessageDigest;
import java.time.Duration;
import java.util.ArrayList;
import java.util.HexFormat;
import java.util.List;
import java.util.Comparator;
import java.util.stream.Stream;
import org.apache.bookkeeper.client.BookKeeperAdmin;
import org.apache.bookkeeper.conf.ClientConfiguration;
import org.apache.bookkeeper.conf.ServerConfiguration;

/** Thermocline's bookie, alone in its cluster, with a guard: who speaks to it has TLS, a certificate and a token. */
public final class GuardedBookie implements AutoCloseable {
    /** The token that lets its bearer in. */
    public static final String TOKEN = "the token of the Java client";

    private static final Duration READY = Duration.ofSeconds(60);

    private final Path dir;
    private final Zoo zoo;
    private final Certificates certificates;
    private final Process bookie;

    /** Starts it and waits until it serves. {@code demands} are more of its arguments. */
    public GuardedBookie(String... demands) throws Exception {
        Path parent = Files.createDirectories(Path.of(System.getProperty("data.dir")));
        dir = Files.createTempDirectory(parent, "guarded-");
        certificates = new Certificates(dir.resolve("certificates")).issue("server").issue("client");
        byte[] hash = MessageDigest.getInstance("SHA-256").digest(TOKEN.getBytes(StandardCharsets.UTF_8));
        Files.writeString(tokens(), "java-client " + HexFormat.of().formatHex(hash) + "\n");
        zoo = new Zoo(dir.resolve("zookeeper"));
        ServerConfiguration configuration = new ServerConfiguration();
        configuration.setMetadataServiceUri(Cluster.uri(zoo));
        if (!BookKeeperAdmin.initNewCluster(configuration)) {
            throw new IllegalStateException("the new ZooKeeper has a cluster already");
        }
        List<String> command = new ArrayList<>(List.of(
            System.getProperty("thermocline"), "bookie",
            "--id", "guarded", "--dir", dir.resolve("data").toString(), "--listen", "127.0.0.1:0", "--admin", "off",
            "--metadata", Cluster.uri(zoo), "--set", "bookie.segment_bytes=64MiB",
            "--certificate", certificates.certificate("server").toString(), "--key", certificates.key("server").toString()));
        for (String demand : demands) {
            command.add(demand.replace("TOKENS", tokens().toString()).replace("CA", certificates.authority().toString()));
        }
        ProcessBuilder builder = new ProcessBuilder(command);
        builder.environment().keySet().removeIf(name -> name.startsWith("THERMOCLINE_"));
        bookie = builder.redirectErrorStream(true).redirectOutput(log().toFile()).start();
        try {
            Waiting.until("the bookie serves; its log is " + log(), READY, () -> {
                if (!bookie.isAlive()) {
                    throw new AssertionError("the bookie ended: " + said());
                }
                return saidReady() && zoo.exists(Cluster.ROOT + "/available/guarded");
            });
        } catch (Exception | AssertionError e) {
            String said = said();
            close();
            throw new AssertionError(said, e);
        }
    }

    /** What its clients are made of. */
    public Certificates certificates() {
        return certificates;
    }

    /** A client without TLS or token. */
    public ClientConfiguration configuration(Wire wire) {
        ClientConfiguration configuration = new ClientConfiguration();
        configuration.setMetadataServiceUri(Cluster.uri(zoo));
        configuration.setUseV2WireProtocol(wire == Wire.V2);
        return configuration;
    }

    /** What it has said so far. */
    public String said() throws IOException {
        return Files.readString(log());
    }

    private Path tokens() {
        return dir.resolve("tokens");
    }

    private Path log() {
        return dir.resolve("log");
    }

    private boolean saidReady() throws IOException {
        return said().contains("ready role=bookie");
    }

    @Override
    public void close() throws Exception {
        bookie.destroyForcibly().waitFor();
        zoo.close();
        if (!Boolean.getBoolean("keep.data")) {
            try (Stream<Path> files = Files.walk(dir)) {
                for (Path file : files.sorted(Comparator.reverseOrder()).toList()) {
                    Files.delete(file);
                }
            }
        }
    }
}

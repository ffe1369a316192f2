package thermocline.interop.cluster;

import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;

/** BookKeeper's own bookie, from the jars on this class path: the control that tells a wrong test from a wrong bookie. */
final class ApacheBookie extends Bookie {
    private static final Duration READY = Duration.ofSeconds(60);

    private final Zoo zoo;
    private final List<String> settings;

    ApacheBookie(int port, Path dir, Zoo zoo, List<String> settings) {
        super(port, dir);
        this.zoo = zoo;
        this.settings = settings;
    }

    @Override
    List<String> command() throws IOException {
        Path configuration = dir().resolve("bookie.conf");
        List<String> lines = new ArrayList<>(List.of(
            "bookiePort=" + port(),
            "allowLoopback=true",
            "advertisedAddress=127.0.0.1",
            "listeningInterface=lo",
            "httpServerEnabled=false",
            "metadataServiceUri=" + Cluster.uri(zoo),
            "zkTimeout=4000",
            "journalDirectory=" + dir().resolve("journal"),
            "ledgerDirectories=" + dir().resolve("ledgers"),
            "journalMaxSizeMB=64",
            "journalPreAllocSizeMB=1",
            // As its shipped configuration has them; explicit last-confirmed entries are durable only so.
            "journalFormatVersionToWrite=6",
            "fileInfoFormatVersionToWrite=1",
            "diskUsageThreshold=0.99",
            "diskUsageWarnThreshold=0.98"));
        lines.addAll(settings);
        Files.write(configuration, lines);
        return List.of(
            Path.of(System.getProperty("java.home"), "bin", "java").toString(),
            // So that the address of the loopback interface is the one that ids are made of.
            "-Djava.net.preferIPv4Stack=true",
            "-Xmx192m", "-XX:MaxDirectMemorySize=192m", "-XX:TieredStopAtLevel=1",
            "-cp", System.getProperty("java.class.path"),
            "org.apache.bookkeeper.server.Main", "--conf", configuration.toString());
    }

    @Override
    void awaitReady() throws Exception {
        await("has registered", READY, () -> zoo.exists(Cluster.ROOT + "/available/" + id()));
    }

    @Override
    void gone() throws Exception {
        Waiting.until("the session of " + id() + " ends", READY, () -> !zoo.exists(Cluster.ROOT + "/available/" + id()));
    }
}

package org.apache.bookkeeper.proto;

import io.netty.buffer.ByteBufAllocator;
import java.io.IOException;
import org.apache.bookkeeper.bookie.Bookie;
import org.apache.bookkeeper.conf.ServerConfiguration;
import org.apache.bookkeeper.stats.StatsLogger;
import org.apache.bookkeeper.tls.SecurityProviderFactoryFactory;

/** A bookie that a test has written itself, served in this JVM by BookKeeper's own front. */
final class OwnBookie implements BookieServer.Served {
    private final Bookie bookie;
    private final BookieNettyServer front;
    private final BookieRequestProcessor processor;
    private boolean running;

    OwnBookie(ServerConfiguration configuration, Bookie bookie, StatsLogger stats, ByteBufAllocator allocator)
            throws Exception {
        this.bookie = bookie;
        front = new BookieNettyServer(configuration, null, allocator);
        processor = new BookieRequestProcessor(configuration, bookie, stats,
            SecurityProviderFactoryFactory.getSecurityProviderFactory(configuration.getTLSProviderFactoryClass()),
            allocator, front.allChannels);
        front.setRequestProcessor(processor);
    }

    @Override
    public void start() throws IOException, InterruptedException {
        BookieServer.count("own");
        bookie.start();
        if (!bookie.isRunning()) {
            processor.close();
            throw new IOException("the test's own bookie has not started");
        }
        front.start();
        running = true;
    }

    @Override
    public void suspend() {
        front.suspendProcessing();
    }

    @Override
    public void resume() {
        front.resumeProcessing();
    }

    @Override
    public void shutdown() {
        front.shutdown();
        if (running) {
            running = false;
            processor.close();
            bookie.shutdown();
        }
    }

    @Override
    public boolean isRunning() {
        return running && bookie.isRunning();
    }

    @Override
    public Bookie bookie() {
        return bookie;
    }

    @Override
    public BookieRequestProcessor processor() {
        return processor;
    }
}
